// Log probabilities of tokens, in one node (see kernels/cpu/logprobs.h).

#pragma once

#include <tuple>
#include <vector>

#include "mlx/primitives.h"

namespace pomona::ops {

// Of int32 tokens [N] under logits [N, V]: their own, float32 [N]; the `top` likeliest tokens,
// int32 [N, min(top, V)], and theirs. Throws std::invalid_argument when shapes or dtypes do not
// fit.
std::tuple<mlx::core::array, mlx::core::array, mlx::core::array> logprobs(
    const mlx::core::array& logits, const mlx::core::array& tokens, int top);

// Inputs: logits in float32, row after row, and tokens.
class Logprobs : public mlx::core::Primitive {
 public:
  explicit Logprobs(mlx::core::Stream stream) : Primitive(stream) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "Logprobs"; }
};

}  // namespace pomona::ops
