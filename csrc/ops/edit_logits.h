// Bias, penalties and masked tokens of several rows of logits, in one node (see
// kernels/cpu/edit_logits.h).

#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/edit_logits.h"
#include "mlx/primitives.h"

namespace pomona::ops {

// Logits [W, V] as float32, row i after edits[i]. unread: int32 tokens that may not have been
// computed yet, for edits that name one. Throws std::invalid_argument when the numbers or dtypes do
// not fit.
mlx::core::array edit_logits(const mlx::core::array& logits, std::vector<kernels::LogitEdits> edits,
                             const std::optional<mlx::core::array>& unread);

// Inputs: logits, row after row, and the unread tokens if there are any.
class EditLogits : public mlx::core::Primitive {
 public:
  EditLogits(mlx::core::Stream stream, std::vector<kernels::LogitEdits> edits)
      : Primitive(stream), edits_(std::move(edits)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "EditLogits"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::vector<kernels::LogitEdits> edits_;
};

}  // namespace pomona::ops
