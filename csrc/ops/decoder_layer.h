// Attention blocks and whole decoder layers over a slab.

#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "kernels/cpu/decoder_layer.h"
#include "mlx/array.h"
#include "ops/expert_mlp.h"
#include "ops/gated_mlp.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// Projections, norms of heads, rope and sinks of one attention block. Shares the weights. Immutable
// once made.
class Attention {
 public:
  struct Parts {
    SharedWeights q, k, v, o;
    int heads, kv_heads;
    float scale;
    std::shared_ptr<const Rope> rope;            // or null
    std::shared_ptr<const Norm> q_norm, k_norm;  // or null
    std::optional<mlx::core::array> sinks;
  };

  // Throws std::invalid_argument when the parts do not fit each other.
  explicit Attention(Parts parts);

  int64_t hidden() const { return parts_.q->depth(); }
  const kernels::AttentionBlock& view() const { return view_; }

  // Of the table's token rows, or null without a rope. They live as long as the table.
  const float* angles(const StepTable& table) const;

 private:
  Parts parts_;
  std::vector<float> sinks_;
  kernels::AttentionBlock view_;
};

using Mlp = std::variant<std::shared_ptr<const GatedMlp>, std::shared_ptr<const ExpertMlp>>;

class DecoderLayer {
 public:
  struct Parts {
    std::shared_ptr<const Attention> attention;
    Mlp mlp;
    std::shared_ptr<const Norm> before_attention, before_mlp, after_attention,
        after_mlp;  // or null
    float residual_scale;
  };

  // Throws std::invalid_argument when the parts do not fit each other.
  explicit DecoderLayer(Parts parts);

  const Attention& attention() const { return *parts_.attention; }
  const kernels::DecoderLayer& view() const { return view_; }

 private:
  Parts parts_;
  kernels::DecoderLayer view_;
};

// x [B, L, hidden], token row t = b * L + l, to the same shape and dtype. Throws
// std::invalid_argument when x, the slab and the table do not fit.
mlx::core::array decoder_layer(const mlx::core::array& x, std::shared_ptr<const DecoderLayer> layer,
                               const Slab& slab, std::shared_ptr<const StepTable> table,
                               int window);

mlx::core::array attention_block(const mlx::core::array& x,
                                 std::shared_ptr<const Attention> attention, const Slab& slab,
                                 std::shared_ptr<const StepTable> table, int window);

}  // namespace pomona::ops
