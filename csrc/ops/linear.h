// Products with model weights, and rows of them.

#pragma once

#include <memory>
#include <vector>

#include "mlx/primitives.h"
#include "ops/weights.h"

namespace pomona::ops {

// x [..., depth] times the transposed matrix, plus its bias: [..., rows] in x's dtype. Throws
// std::invalid_argument when x does not fit.
mlx::core::array linear(const mlx::core::array& x, std::shared_ptr<const Weights> weights);

// Rows of the matrix by int32 or uint32 ids [...]: [..., depth] in the weights' dtype. An id
// outside gives NaN.
mlx::core::array embed(const mlx::core::array& ids, std::shared_ptr<const Weights> weights);

// Input: ids.
class Embed : public mlx::core::Primitive {
 public:
  Embed(mlx::core::Stream stream, std::shared_ptr<const Weights> weights)
      : Primitive(stream), weights_(std::move(weights)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "Embed"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::shared_ptr<const Weights> weights_;
};

}  // namespace pomona::ops
