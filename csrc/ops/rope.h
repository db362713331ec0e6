// Rotary positions.

#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "kernels/cpu/rows.h"
#include "mlx/array.h"

namespace pomona::ops {

// Frequencies of the pairs of a head, as float32. Immutable once made.
class Rope {
 public:
  // frequencies: [pairs]. Throws std::invalid_argument on another shape.
  Rope(const mlx::core::array& frequencies, bool traditional, float scale);

  int64_t dims() const { return 2 * static_cast<int64_t>(frequencies_.size()); }
  const std::vector<float>& frequencies() const { return frequencies_; }
  kernels::Turning turning() const { return {dims() / 2, traditional_, scale_}; }

 private:
  std::vector<float> frequencies_;
  bool traditional_;
  float scale_;
};

// x [B, H, L, D] at positions offset[b] + l, in x's dtype. Throws std::invalid_argument when x is
// narrower than the rope or the offsets do not fit.
mlx::core::array rope(const mlx::core::array& x, std::shared_ptr<const Rope> rope,
                      const std::variant<int, mlx::core::array>& offset);

}  // namespace pomona::ops
