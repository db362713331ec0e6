// Picks one token for each row of logits, in one node (see kernels/cpu/choose.h).

#pragma once

#include <vector>

#include "kernels/cpu/choose.h"
#include "mlx/primitives.h"

namespace pomona::ops {

// Tokens int32 [W] for logits [W, V] in float32, bfloat16 or float16; kNoToken where a row's
// largest logit is not finite. Throws std::invalid_argument unless there is a rule and an index for
// each row, and the rules are numbers, top_p and min_p from 0 to 1.
mlx::core::array choose(const mlx::core::array& logits, std::vector<kernels::DrawRule> rules,
                        std::vector<uint64_t> indices);

// Input: logits, row after row.
class Choose : public mlx::core::Primitive {
 public:
  Choose(mlx::core::Stream stream, std::vector<kernels::DrawRule> rules,
         std::vector<uint64_t> indices)
      : Primitive(stream), rules_(std::move(rules)), indices_(std::move(indices)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "Choose"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::vector<kernels::DrawRule> rules_;
  std::vector<uint64_t> indices_;
};

}  // namespace pomona::ops
