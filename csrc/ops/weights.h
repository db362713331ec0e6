// A model's weight matrix (or a stack of them) as the kernels see it.
//
// Ownership: holds the arrays, so their memory lives as long as it does; copies only the bias, as
// float32. Immutable once made: primitives on any thread may read one.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/weights.h"
#include "mlx/array.h"

namespace pomona::ops {

class Weights {
 public:
  // As mlx.nn keeps them: weight [rows, depth] dense, or packed words with scales and, for mode
  // "affine", biases; with a leading axis a stack of experts. bias: [rows] or [experts, rows].
  // Waits for arrays that have not been evaluated. Throws std::invalid_argument on what does not
  // fit.
  Weights(const mlx::core::array& weight, const std::optional<mlx::core::array>& scales,
          const std::optional<mlx::core::array>& biases,
          const std::optional<mlx::core::array>& bias, int group_size, int bits,
          const std::string& mode);

  int64_t rows() const { return first_.rows; }
  int64_t depth() const { return first_.depth; }
  int64_t experts() const { return experts_; }  // 0: a single matrix

  // The matrix, or that of one expert.
  kernels::Weights matrix(int64_t expert = 0) const;

  // [rows] of one matrix, or null.
  const float* bias(int64_t expert = 0) const;

  // Of dense values or of scales; float32 where scales are bytes.
  mlx::core::Dtype dtype() const;

  // Rows [first, first + count) of a single matrix.
  Weights part(int64_t first, int64_t count) const;

 private:
  void take_packed(const mlx::core::array& weight, const mlx::core::array& scales,
                   const std::optional<mlx::core::array>& biases, int group_size, int bits,
                   const std::string& mode);

  std::vector<mlx::core::array> arrays_;
  kernels::Weights first_;
  int64_t experts_ = 0;
  std::shared_ptr<const std::vector<float>> bias_;
  int64_t bias_at_ = 0;
};

}  // namespace pomona::ops
