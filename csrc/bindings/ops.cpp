// pomona._ops: the MLX primitives. The contract is python/pomona/_ops.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "kernels/cpu/blas_pool.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/variant.h"
#include "ops/choose.h"
#include "ops/decoder_layer.h"
#include "ops/edit_logits.h"
#include "ops/expert_mlp.h"
#include "ops/gated_mlp.h"
#include "ops/linear.h"
#include "ops/logprobs.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/row_tables.h"
#include "ops/slab.h"
#include "ops/stamp.h"
#include "ops/step_table.h"
#include "ops/update_and_attend.h"
#include "ops/update_and_gather.h"
#include "ops/weights.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pomona;

namespace {

template <typename... Shape>
using Ints = nb::ndarray<const int32_t, nb::numpy, nb::device::cpu, nb::c_contig, Shape...>;
using Row = Ints<nb::ndim<1>>;
using Table = Ints<nb::ndim<2>>;
using Floats = nb::ndarray<const float, nb::numpy, nb::device::cpu, nb::c_contig, nb::ndim<1>>;
using Pairs = Ints<nb::shape<-1, 2>>;

std::span<const int32_t> span(const auto& ints) { return {ints.data(), ints.size()}; }

auto vector(const auto& array) { return std::vector(array.data(), array.data() + array.size()); }

// nanobind owns the objects below; a primitive that outlives the Python handle needs a share of
// its own.
class Step {
 public:
  Step(int block_size, const Table& tables, const Row& sequence, const Row& visible,
       const Row& slots, const Pairs& copies)
      : table(std::make_shared<const ops::StepTable>(
            block_size, span(tables), static_cast<int64_t>(tables.shape(1)), span(sequence),
            span(visible), span(slots), span(copies))) {}

  static Step of_rows(int block_size, const std::vector<Row>& blocks,
                      const std::vector<int32_t>& starts, const std::vector<int32_t>& counts,
                      const Pairs& copies) {
    std::vector<std::span<const int32_t>> spans;
    for (const Row& row : blocks) spans.push_back(span(row));
    return Step(ops::table_of_rows(block_size, spans, starts, counts, span(copies)));
  }

  std::shared_ptr<const ops::StepTable> table;

 private:
  explicit Step(std::shared_ptr<const ops::StepTable> made) : table(std::move(made)) {}
};

class SharedWeights {
 public:
  explicit SharedWeights(ops::Weights w)
      : weights(std::make_shared<const ops::Weights>(std::move(w))) {}

  std::shared_ptr<const ops::Weights> weights;
};

// The parts of a layer are shared by the primitives that use them.
template <typename T>
class Shared {
 public:
  template <typename... Args>
  explicit Shared(std::in_place_t, Args&&... args)
      : value(std::make_shared<const T>(std::forward<Args>(args)...)) {}

  std::shared_ptr<const T> value;
};

template <typename T>
std::shared_ptr<const T> share_of(const Shared<T>* part) {
  return part == nullptr ? nullptr : part->value;
}

std::shared_ptr<const ops::Weights> weights_of(const SharedWeights* part) {
  return part == nullptr ? nullptr : part->weights;
}

using SharedNorm = Shared<ops::Norm>;
using SharedRope = Shared<ops::Rope>;
using SharedAttention = Shared<ops::Attention>;
using SharedMlp = Shared<ops::GatedMlp>;
using SharedExperts = Shared<ops::Experts>;
using SharedExpertMlp = Shared<ops::ExpertMlp>;
using SharedLayer = Shared<ops::DecoderLayer>;

void bind_layers(nb::module_& m) {
  using mlx::core::array;
  using MaybeArray = std::optional<array>;

  nb::class_<SharedNorm>(m, "Norm").def(
      "__init__",
      [](SharedNorm* self, const MaybeArray& weight, float eps) {
        new (self) SharedNorm(std::in_place, weight, eps);
      },
      "weight"_a.none(), "eps"_a);
  m.def(
      "rms_norm",
      [](const array& x, const SharedNorm& norm) { return ops::rms_norm(x, norm.value); }, "x"_a,
      "norm"_a);

  nb::class_<SharedRope>(m, "Rope").def(
      "__init__",
      [](SharedRope* self, const array& frequencies, bool traditional, float scale) {
        new (self) SharedRope(std::in_place, frequencies, traditional, scale);
      },
      "frequencies"_a, "traditional"_a = false, "scale"_a = 1.0f);
  m.def(
      "rope",
      [](const array& x, const SharedRope& rope, const std::variant<int, array>& offset) {
        return ops::rope(x, rope.value, offset);
      },
      "x"_a, "rope"_a, "offset"_a);

  nb::class_<SharedAttention>(m, "Attention")
      .def(
          "__init__",
          [](SharedAttention* self, const SharedWeights& q, const SharedWeights& k,
             const SharedWeights& v, const SharedWeights& o, int heads, int kv_heads, float scale,
             const SharedRope* rope, const SharedNorm* q_norm, const SharedNorm* k_norm,
             const MaybeArray& sinks) {
            new (self) SharedAttention(
                std::in_place, ops::Attention::Parts{q.weights, k.weights, v.weights, o.weights,
                                                     heads, kv_heads, scale, share_of(rope),
                                                     share_of(q_norm), share_of(k_norm), sinks});
          },
          "q"_a, "k"_a, "v"_a, "o"_a, "heads"_a, "kv_heads"_a, "scale"_a, "rope"_a = nb::none(),
          "q_norm"_a = nb::none(), "k_norm"_a = nb::none(), "sinks"_a = nb::none());

  nb::class_<SharedMlp>(m, "GatedMlp")
      .def(
          "__init__",
          [](SharedMlp* self, const SharedWeights* gate, const SharedWeights& up,
             const SharedWeights& down, const std::string& activation) {
            new (self)
                SharedMlp(std::in_place, weights_of(gate), up.weights, down.weights, activation);
          },
          "gate"_a.none(), "up"_a, "down"_a, "activation"_a);
  m.def(
      "gated_mlp",
      [](const array& x, const SharedMlp& mlp) { return ops::gated_mlp(x, mlp.value); }, "x"_a,
      "mlp"_a);

  nb::class_<SharedExperts>(m, "Experts")
      .def(
          "__init__",
          [](SharedExperts* self, const SharedWeights& gate, const SharedWeights& up,
             const SharedWeights& down, const std::string& activation) {
            new (self)
                SharedExperts(std::in_place, gate.weights, up.weights, down.weights, activation);
          },
          "gate"_a, "up"_a, "down"_a, "activation"_a);
  nb::class_<SharedExpertMlp>(m, "ExpertMlp")
      .def(
          "__init__",
          [](SharedExpertMlp* self, const SharedWeights& router, const SharedExperts& experts,
             int top_k, const std::string& scoring, bool normalise, const SharedMlp* shared,
             const SharedWeights* shared_gate) {
            new (self) SharedExpertMlp(
                std::in_place,
                ops::ExpertMlp::Parts{router.weights, experts.value, top_k, scoring, normalise,
                                      share_of(shared), weights_of(shared_gate)});
          },
          "router"_a, "experts"_a, "top_k"_a, "scoring"_a, "normalise"_a = false,
          "shared"_a = nb::none(), "shared_gate"_a = nb::none());
  m.def(
      "expert_mlp",
      [](const array& x, const SharedExpertMlp& mlp) { return ops::expert_mlp(x, mlp.value); },
      "x"_a, "mlp"_a);
  m.def(
      "switch_glu",
      [](const array& x, const SharedExperts& experts, const array& indices) {
        return ops::switch_glu(x, experts.value, indices);
      },
      "x"_a, "experts"_a, "indices"_a);

  nb::class_<SharedLayer>(m, "DecoderLayer")
      .def(
          "__init__",
          [](SharedLayer* self, const SharedAttention& attention,
             const std::variant<const SharedMlp*, const SharedExpertMlp*>& mlp,
             const SharedNorm* before_attention, const SharedNorm* before_mlp,
             const SharedNorm* after_attention, const SharedNorm* after_mlp, float residual_scale) {
            const ops::Mlp kind =
                std::visit([](auto* part) -> ops::Mlp { return part->value; }, mlp);
            new (self) SharedLayer(
                std::in_place,
                ops::DecoderLayer::Parts{attention.value, kind, share_of(before_attention),
                                         share_of(before_mlp), share_of(after_attention),
                                         share_of(after_mlp), residual_scale});
          },
          "attention"_a, "mlp"_a, "before_attention"_a.none(), "before_mlp"_a.none(),
          "after_attention"_a = nb::none(), "after_mlp"_a = nb::none(), "residual_scale"_a = 1.0f);
  m.def(
      "decoder_layer",
      [](const array& x, const SharedLayer& layer, const ops::Slab& slab, const Step& step,
         int window) { return ops::decoder_layer(x, layer.value, slab, step.table, window); },
      "x"_a, "layer"_a, "slab"_a, "table"_a, "window"_a = 0);
  m.def(
      "attention_block",
      [](const array& x, const SharedAttention& attention, const ops::Slab& slab, const Step& step,
         int window) { return ops::attention_block(x, attention.value, slab, step.table, window); },
      "x"_a, "attention"_a, "slab"_a, "table"_a, "window"_a = 0);
}

class SharedMoment {
 public:
  std::shared_ptr<ops::Moment> moment = std::make_shared<ops::Moment>();
};

}  // namespace

NB_MODULE(_ops, m) {
  nb::module_::import_("mlx.core");  // registers the array and dtype types used below
  m.doc() = "MLX primitives over the CPU kernels.";
  // A wrong choice must raise here, not in a step.
  kernels::ThreadPool::configured_threads();
  kernels::kernels();
  kernels::share_pool_with_blas();

  nb::class_<ops::Slab>(m, "Slab")
      .def(nb::init<int, int, int, int, int, int, mlx::core::Dtype>(), "blocks"_a, "block_size"_a,
           "k_heads"_a, "k_dim"_a, "v_heads"_a, "v_dim"_a, "dtype"_a)
      .def_prop_ro("blocks", &ops::Slab::blocks)
      .def_prop_ro("block_size", &ops::Slab::block_size)
      .def_prop_ro("nbytes", &ops::Slab::nbytes)
      .def("grow", &ops::Slab::grow, "blocks"_a)
      .def("keys", &ops::Slab::copy_keys)
      .def("values", &ops::Slab::copy_values)
      .def("address", &ops::Slab::address);

  nb::class_<Step>(m, "StepTable")
      .def(nb::init<int, const Table&, const Row&, const Row&, const Row&, const Pairs&>(),
           "block_size"_a, "tables"_a, "sequence"_a, "visible"_a, "slots"_a, "copies"_a)
      .def_static("of_rows", &Step::of_rows, "block_size"_a, "blocks"_a, "starts"_a, "counts"_a,
                  "copies"_a);

  m.def(
      "update_and_attend",
      [](const mlx::core::array& q, const mlx::core::array& k, const mlx::core::array& v,
         const ops::Slab& slab, const Step& step, float scale, int window,
         const std::optional<mlx::core::array>& sinks) {
        return ops::update_and_attend(q, k, v, slab, step.table, scale, window, sinks);
      },
      "q"_a, "k"_a, "v"_a, "slab"_a, "table"_a, "scale"_a, "window"_a = 0, "sinks"_a = nb::none());
  m.def(
      "update_and_gather",
      [](const mlx::core::array& x, const ops::Slab& slab, bool values, const Step& step) {
        return ops::update_and_gather(x, slab, values, step.table);
      },
      "x"_a, "slab"_a, "values"_a, "table"_a);

  nb::class_<kernels::DrawRule>(m, "DrawRule")
      .def(
          "__init__",
          [](kernels::DrawRule* self, float temperature, int64_t top_k, float top_p, float min_p,
             uint64_t seed) {
            new (self) kernels::DrawRule{temperature, top_k, top_p, min_p, seed};
          },
          "temperature"_a, "top_k"_a = 0, "top_p"_a = 1.0f, "min_p"_a = 0.0f, "seed"_a = 0)
      .def_ro("temperature", &kernels::DrawRule::temperature)
      .def_ro("top_k", &kernels::DrawRule::top_k)
      .def_ro("top_p", &kernels::DrawRule::top_p)
      .def_ro("min_p", &kernels::DrawRule::min_p)
      .def_ro("seed", &kernels::DrawRule::seed);
  nb::class_<kernels::LogitEdits>(m, "LogitEdits")
      .def(
          "__init__",
          [](kernels::LogitEdits* self, const Row& bias_ids, const Floats& bias, const Row& ids,
             const Floats& counts, const Row& masked, int unread, float repetition, float frequency,
             float presence) {
            if (bias.size() != bias_ids.size() || counts.size() != ids.size()) {
              throw std::invalid_argument(
                  "LogitEdits: bias_ids and bias must be of one length, and so must ids and "
                  "counts");
            }
            new (self) kernels::LogitEdits{vector(bias_ids), vector(bias), vector(ids),
                                           vector(counts),   unread,       repetition,
                                           frequency,        presence,     vector(masked)};
          },
          "bias_ids"_a, "bias"_a, "ids"_a, "counts"_a, "masked"_a, "unread"_a = -1,
          "repetition"_a = 1.0f, "frequency"_a = 0.0f, "presence"_a = 0.0f);
  m.def(
      "edit_logits",
      [](const mlx::core::array& logits, const std::vector<const kernels::LogitEdits*>& rows,
         const std::optional<mlx::core::array>& unread) {
        std::vector<kernels::LogitEdits> edits;
        for (const auto* row : rows) edits.push_back(row == nullptr ? kernels::LogitEdits{} : *row);
        return ops::edit_logits(logits, std::move(edits), unread);
      },
      "logits"_a, "edits"_a, "unread"_a = nb::none());

  m.def("choose", &ops::choose, "logits"_a, "rules"_a, "indices"_a);
  m.def("logprobs", &ops::logprobs, "logits"_a, "tokens"_a, "top"_a);
  using MaybeArray = std::optional<mlx::core::array>;
  nb::class_<SharedWeights>(m, "Weights")
      .def(
          "__init__",
          [](SharedWeights* self, const mlx::core::array& weight, const MaybeArray& scales,
             const MaybeArray& biases, const MaybeArray& bias, int group_size, int bits,
             const std::string& mode) {
            new (self)
                SharedWeights(ops::Weights(weight, scales, biases, bias, group_size, bits, mode));
          },
          "weight"_a, "scales"_a = nb::none(), "biases"_a = nb::none(), "bias"_a = nb::none(),
          "group_size"_a = 0, "bits"_a = 0, "mode"_a = "affine")
      .def_prop_ro("rows", [](const SharedWeights& self) { return self.weights->rows(); })
      .def_prop_ro("depth", [](const SharedWeights& self) { return self.weights->depth(); })
      .def_prop_ro("experts", [](const SharedWeights& self) { return self.weights->experts(); })
      .def(
          "part",
          [](const SharedWeights& self, int64_t first, int64_t count) {
            return SharedWeights(self.weights->part(first, count));
          },
          "first"_a, "count"_a);
  m.def(
      "linear",
      [](const mlx::core::array& x, const SharedWeights& w) { return ops::linear(x, w.weights); },
      "x"_a, "weights"_a);
  m.def(
      "embed",
      [](const mlx::core::array& ids, const SharedWeights& w) {
        return ops::embed(ids, w.weights);
      },
      "ids"_a, "weights"_a);

  bind_layers(m);

  nb::class_<SharedMoment>(m, "Moment")
      .def(nb::init<>())
      .def_prop_ro("seconds", [](const SharedMoment& self) { return self.moment->seconds(); })
      .def_static("now", &ops::Moment::now);
  m.def(
      "stamp",
      [](const mlx::core::array& x, const SharedMoment& moment) {
        return ops::stamp(x, moment.moment);
      },
      "x"_a, "moment"_a);
  m.def("cpu_variant", [] { return kernels::kernels().name; });
}
