// Mixtures of experts.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/expert_mlp.h"
#include "mlx/array.h"
#include "ops/gated_mlp.h"

namespace pomona::ops {

// Gated MLPs over stacks of matrices, one per expert. Shares the weights. Immutable once made.
class Experts {
 public:
  // Throws std::invalid_argument when shapes or the activation do not fit.
  Experts(SharedWeights gate, SharedWeights up, SharedWeights down, const std::string& activation);

  int64_t count() const { return std::ssize(mlps_); }
  int64_t hidden() const { return up_->depth(); }
  std::span<const kernels::GatedMlp> view() const { return mlps_; }

 private:
  SharedWeights gate_, up_, down_;
  std::vector<kernels::GatedMlp> mlps_;
};

// `top_k` experts for each row, chosen and weighted by a router.
class ExpertMlp {
 public:
  struct Parts {
    SharedWeights router;
    std::shared_ptr<const Experts> experts;
    int top_k;
    std::string scoring;  // "softmax", "topk_softmax" or "sigmoid"
    bool normalise;
    std::shared_ptr<const GatedMlp> shared;  // or null
    SharedWeights shared_gate;               // or null
  };

  // Throws std::invalid_argument when the parts do not fit each other.
  explicit ExpertMlp(Parts parts);

  int64_t hidden() const { return parts_.experts->hidden(); }
  const kernels::ExpertMlp& view() const { return view_; }

 private:
  Parts parts_;
  kernels::Linear shared_gate_;
  kernels::ExpertMlp view_;
};

// x [..., hidden], in x's dtype. Throws std::invalid_argument when it does not fit.
mlx::core::array expert_mlp(const mlx::core::array& x, std::shared_ptr<const ExpertMlp> mlp);

// x [..., hidden] through the experts indices [..., k] (int32 or uint32): [..., k, hidden] in x's
// dtype. Throws std::invalid_argument when they do not fit.
mlx::core::array switch_glu(const mlx::core::array& x, std::shared_ptr<const Experts> experts,
                            const mlx::core::array& indices);

}  // namespace pomona::ops
