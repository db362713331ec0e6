// A gated MLP.

#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/gated_mlp.h"
#include "mlx/array.h"
#include "ops/weights.h"

namespace pomona::ops {

using SharedWeights = std::shared_ptr<const Weights>;

// Throws std::invalid_argument for an unknown name; `what` names the caller.
kernels::Activation activation_of(const std::string& name, const char* what);

kernels::Linear linear_of(const Weights& weights, int64_t expert = 0);

// down(activation(gate(x)) * up(x)). Shares the weights. Immutable once made.
class GatedMlp {
 public:
  // gate may be null. Throws std::invalid_argument when shapes or the activation do not fit.
  GatedMlp(SharedWeights gate, SharedWeights up, SharedWeights down, const std::string& activation);

  int64_t hidden() const { return up_->depth(); }
  const kernels::GatedMlp& view() const { return view_; }

 private:
  SharedWeights gate_, up_, down_;
  kernels::GatedMlp view_;
};

// x [..., hidden], in x's dtype. Throws std::invalid_argument when it does not fit.
mlx::core::array gated_mlp(const mlx::core::array& x, std::shared_ptr<const GatedMlp> mlp);

}  // namespace pomona::ops
