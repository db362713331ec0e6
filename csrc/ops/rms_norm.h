// Root mean square norm.

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cpu/rows.h"
#include "mlx/array.h"

namespace pomona::ops {

// Its weight, as float32. Immutable once made.
class Norm {
 public:
  // weight: [dim], or none for ones. Throws std::invalid_argument on another shape.
  Norm(const std::optional<mlx::core::array>& weight, float eps);

  // Whether it can be applied to rows of this width.
  bool fits(int64_t width) const {
    return weight_.empty() || static_cast<int64_t>(weight_.size()) == width;
  }
  int64_t dim() const { return static_cast<int64_t>(weight_.size()); }  // 0: any
  kernels::Norm view() const { return {weight_.empty() ? nullptr : weight_.data(), eps_}; }

 private:
  std::vector<float> weight_;
  float eps_;
};

// x [..., dim] over its last axis, in x's dtype. Throws std::invalid_argument when they do not fit.
mlx::core::array rms_norm(const mlx::core::array& x, std::shared_ptr<const Norm> norm);

}  // namespace pomona::ops
