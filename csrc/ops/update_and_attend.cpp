#include "ops/update_and_attend.h"

#include <stdexcept>
#include <utility>

#include "kernels/cpu/variant.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/utils.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"update_and_attend"};

void check(const mx::array& q, const mx::array& k, const mx::array& v, const Slab& slab,
           const StepTable& table, int window, const std::optional<mx::array>& sinks) {
  require(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4,
          "q, k and v must be [B, H, L, D], got shapes ", q.shape(), ", ", k.shape(), ", ",
          v.shape());
  const mx::array &keys = slab.keys(), &values = slab.values();
  const auto batch = q.shape(0), length = q.shape(2);
  require(k.shape() == mx::Shape{batch, keys.shape(2), length, keys.shape(3)}, "k has shape ",
          k.shape(), ", expected [", batch, ", ", keys.shape(2), ", ", length, ", ", keys.shape(3),
          "] for this q and slab");
  require(v.shape() == mx::Shape{batch, values.shape(2), length, values.shape(3)}, "v has shape ",
          v.shape(), ", expected [", batch, ", ", values.shape(2), ", ", length, ", ",
          values.shape(3), "] for this q and slab");
  require(keys.shape(2) == values.shape(2), "the slab has ", keys.shape(2), " heads of K but ",
          values.shape(2), " of V");
  require(q.shape(3) == keys.shape(3), "q has width ", q.shape(3), ", the slab's K has ",
          keys.shape(3));
  require(q.shape(1) > 0 && q.shape(1) % keys.shape(2) == 0, "q has ", q.shape(1),
          " heads, not a multiple of the slab's ", keys.shape(2));
  float_of(q.dtype(), "update_and_attend: q");
  require(k.dtype() == keys.dtype() && v.dtype() == keys.dtype(), "k and v are ", k.dtype(),
          " and ", v.dtype(), ", the slab is ", keys.dtype());
  require(int64_t{batch} * length == table.tokens(), "q has ", int64_t{batch} * length,
          " token rows, the table has ", table.tokens());
  require.table_fits(table, slab);
  require(window >= 0, "window must not be negative, got ", window);
  if (sinks) {
    require(sinks->shape() == mx::Shape{q.shape(1)}, "sinks must be one logit per query head, [",
            q.shape(1), "], got shape ", sinks->shape());
    float_of(sinks->dtype(), "update_and_attend: sinks");
  }
}

std::vector<float> to_floats(const mx::array& x) {
  std::vector<float> values(x.size());
  const auto read = [&](const auto* data) {
    for (size_t i = 0; i < values.size(); i++) {
      values[i] = static_cast<float>(data[i * x.strides(0)]);
    }
  };
  switch (float_of(x.dtype(), "x")) {
    case kernels::Float::kFloat32:
      read(x.data<float>());
      break;
    case kernels::Float::kBfloat16:
      read(x.data<mx::bfloat16_t>());
      break;
    case kernels::Float::kFloat16:
      read(x.data<mx::float16_t>());
      break;
  }
  return values;
}

// Memory as [B, L, H, D], seen as [B, H, L, D]: the model's transpose and reshape copy nothing.
void allocate_token_major(mx::array& out) {
  const int64_t heads = out.shape(1), length = out.shape(2), dim = out.shape(3);
  const mx::array::Flags flags{.contiguous = true,
                               .row_contiguous = heads == 1 || length == 1,
                               .col_contiguous = out.size() <= 1};
  out.set_data(mx::allocator::malloc(out.nbytes()), out.size(),
               {length * heads * dim, dim, heads * dim, 1}, flags);
}

}  // namespace

mx::array update_and_attend(const mx::array& q, const mx::array& k, const mx::array& v,
                            const Slab& slab, std::shared_ptr<const StepTable> table, float scale,
                            int window, const std::optional<mx::array>& sinks) {
  kernels::kernels();  // a wrong choice must raise here, not later on the stream's thread
  check(q, k, v, slab, *table, window, sinks);
  std::vector<mx::array> inputs{q, k, v, slab.keys(), slab.values()};
  if (sinks) inputs.push_back(*sinks);
  return mx::array(
      {q.shape(0), q.shape(1), q.shape(2), v.shape(3)}, q.dtype(),
      std::make_shared<UpdateAndAttend>(mx::to_stream({}), std::move(table), scale, window),
      std::move(inputs));
}

std::vector<mx::Shape> UpdateAndAttend::output_shapes(const std::vector<mx::array>& inputs) {
  const mx::array &q = inputs[0], &v = inputs[2];
  return {{q.shape(0), q.shape(1), q.shape(2), v.shape(3)}};
}

void UpdateAndAttend::eval_cpu(const std::vector<mx::array>& inputs,
                               std::vector<mx::array>& outputs) {
  allocate_token_major(outputs[0]);
  std::vector<mx::array> views;
  for (const mx::array& x : inputs) views.push_back(mx::array::unsafe_weak_copy(x));
  mx::cpu::get_command_encoder(stream()).dispatch(
      [views = std::move(views), out = mx::array::unsafe_weak_copy(outputs[0]), table = table_,
       scale = scale_, window = window_]() mutable {
        const kernels::SlabHalf keys = slab_half(views[3]), values = slab_half(views[4]);
        kernels::copy_blocks(keys, table->copies());
        kernels::copy_blocks(values, table->copies());
        kernels::write_rows(token_rows(views[1]), keys, table->slots());
        kernels::write_rows(token_rows(views[2]), values, table->slots());
        const std::vector<float> sinks =
            views.size() > 5 ? to_floats(views[5]) : std::vector<float>();
        kernels::attend({
            .q = token_rows(views[0]),
            .keys = keys,
            .values = values,
            .rows = table->rows(),
            .scale = scale,
            .window = window,
            .sinks = sinks.empty() ? nullptr : sinks.data(),
            .out = out.data<void>(),
        });
      });
}

void UpdateAndAttend::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error(
      "update_and_attend has no GPU kernel yet: use the gathered reader or the CPU device");
}

}  // namespace pomona::ops
