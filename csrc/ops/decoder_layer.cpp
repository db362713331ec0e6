#include "ops/decoder_layer.h"

#include <utility>

#include "mlx/utils.h"
#include "ops/require.h"
#include "ops/row_primitive.h"
#include "ops/values.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

std::optional<kernels::Norm> view_of(const std::shared_ptr<const Norm>& norm) {
  return norm ? std::optional(norm->view()) : std::nullopt;
}

// Null when the MLP is of another kind.
template <typename Kind>
auto view_of(const Mlp& mlp) {
  const auto* held = std::get_if<std::shared_ptr<const Kind>>(&mlp);
  return held == nullptr ? nullptr : &(*held)->view();
}

void check_call(const Require& require, const mx::array& x, const Attention& attention,
                const Slab& slab, const StepTable& table, int window) {
  const kernels::AttentionBlock& block = attention.view();
  const mx::array &keys = slab.keys(), &values = slab.values();
  require(x.ndim() == 3 && x.shape(2) == attention.hidden(), "x has shape ", x.shape(),
          ", expected [B, L, ", attention.hidden(), "]");
  require(int64_t{x.shape(0)} * x.shape(1) == table.tokens(), "x has ",
          int64_t{x.shape(0)} * x.shape(1), " token rows, the table has ", table.tokens());
  require(keys.shape(2) == block.kv_heads && keys.shape(3) == block.head_dim(),
          "the slab has K of ", keys.shape(2), " heads of width ", keys.shape(3), ", the block ",
          block.kv_heads, " of ", block.head_dim());
  require(values.shape(2) == block.kv_heads && values.shape(3) == block.value_dim(),
          "the slab has V of ", values.shape(2), " heads of width ", values.shape(3),
          ", the block ", block.kv_heads, " of ", block.value_dim());
  require.table_fits(table, slab);
  require(window >= 0, "window must not be negative, got ", window);
}

// A node over x and the slab, whose halves it writes in place; calls run(context, x, out).
template <typename Run>
mx::array over_slab(const char* name, const mx::array& x, const Attention& attention,
                    const Slab& slab, std::shared_ptr<const StepTable> table, int window, Run run) {
  check_call({name}, x, attention, slab, *table, window);
  return row_primitive(name, {x, slab.keys(), slab.values()}, x.shape(),
                       [=, &attention](const std::vector<mx::array>& views,
                                       const kernels::Rows& rows, const kernels::Target& out) {
                         const kernels::Context context{
                             .keys = slab_half(views[1]),
                             .values = slab_half(views[2]),
                             .rows = table->rows(),
                             .slots = table->slots(),
                             .copies = table->copies(),
                             .angles = attention.angles(*table),
                             .window = window,
                         };
                         run(context, rows, out);
                       });
}

}  // namespace

Attention::Attention(Parts parts) : parts_(std::move(parts)) {
  constexpr Require require{"Attention"};
  const auto& [q, k, v, o, heads, kv_heads, scale, rope, q_norm, k_norm, sinks] = parts_;
  for (const SharedWeights& w : {q, k, v, o}) {
    require(w->experts() == 0, "weights must be single matrices, got a stack of ", w->experts());
  }
  require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, heads,
          " heads are not a multiple of ", kv_heads, " KV heads");
  require(q->rows() % heads == 0, "q has ", q->rows(), " rows, not a multiple of ", heads,
          " heads");
  const int64_t dim = q->rows() / heads;
  require(k->rows() == kv_heads * dim, "k has ", k->rows(), " rows, expected ", kv_heads,
          " heads of ", dim);
  require(v->rows() % kv_heads == 0, "v has ", v->rows(), " rows, not a multiple of ", kv_heads,
          " heads");
  const int64_t value_dim = v->rows() / kv_heads;
  require(k->depth() == q->depth() && v->depth() == q->depth(), "q, k and v have depths ",
          q->depth(), ", ", k->depth(), " and ", v->depth());
  require(o->depth() == heads * value_dim && o->rows() == q->depth(), "o is [", o->rows(), ", ",
          o->depth(), "], expected [", q->depth(), ", ", heads * value_dim, "]");
  for (const auto& norm : {q_norm, k_norm}) {
    require(!norm || norm->fits(dim), "a head's norm has ", norm ? norm->dim() : 0,
            " weights, heads are ", dim, " wide");
  }
  require(!rope || rope->dims() <= dim, "the rope turns ", rope ? rope->dims() : 0,
          " values of a head, heads are ", dim, " wide");
  if (sinks) {
    require(sinks->shape() == mx::Shape{heads}, "sinks must be [", heads, "], got shape ",
            sinks->shape());
    sinks_ = values_of(*sinks);
  }
  view_ = {
      .q = linear_of(*q),
      .k = linear_of(*k),
      .v = linear_of(*v),
      .o = linear_of(*o),
      .heads = heads,
      .kv_heads = kv_heads,
      .scale = scale,
      .turning = rope ? rope->turning() : kernels::Turning{},
      .q_norm = view_of(q_norm),
      .k_norm = view_of(k_norm),
      .sinks = sinks ? sinks_.data() : nullptr,
  };
}

const float* Attention::angles(const StepTable& table) const {
  return parts_.rope ? table.angles(parts_.rope->frequencies()) : nullptr;
}

DecoderLayer::DecoderLayer(Parts parts) : parts_(std::move(parts)) {
  constexpr Require require{"DecoderLayer"};
  const int64_t hidden = parts_.attention->hidden();
  const int64_t mlp_width = std::visit([](const auto& mlp) { return mlp->hidden(); }, parts_.mlp);
  require(mlp_width == hidden, "attention has width ", hidden, ", the MLP ", mlp_width);
  for (const auto& norm :
       {parts_.before_attention, parts_.before_mlp, parts_.after_attention, parts_.after_mlp}) {
    require(!norm || norm->fits(hidden), "a norm has ", norm ? norm->dim() : 0,
            " weights, the layer is ", hidden, " wide");
  }
  view_ = {
      .attention = parts_.attention->view(),
      .mlp = view_of<GatedMlp>(parts_.mlp),
      .experts = view_of<ExpertMlp>(parts_.mlp),
      .before_attention = view_of(parts_.before_attention),
      .before_mlp = view_of(parts_.before_mlp),
      .after_attention = view_of(parts_.after_attention),
      .after_mlp = view_of(parts_.after_mlp),
      .residual_scale = parts_.residual_scale,
  };
}

mx::array decoder_layer(const mx::array& x, std::shared_ptr<const DecoderLayer> layer,
                        const Slab& slab, std::shared_ptr<const StepTable> table, int window) {
  // `layer` is captured, so its attention lives as long as the node.
  return over_slab("decoder_layer", x, layer->attention(), slab, std::move(table), window,
                   [layer](const kernels::Context& context, const kernels::Rows& rows,
                           const kernels::Target& out) {
                     kernels::decoder_layer(layer->view(), context, rows, out);
                   });
}

mx::array attention_block(const mx::array& x, std::shared_ptr<const Attention> attention,
                          const Slab& slab, std::shared_ptr<const StepTable> table, int window) {
  return over_slab("attention_block", x, *attention, slab, std::move(table), window,
                   [attention](const kernels::Context& context, const kernels::Rows& rows,
                               const kernels::Target& out) {
                     kernels::attention_block(attention->view(), context, rows, out);
                   });
}

}  // namespace pomona::ops
