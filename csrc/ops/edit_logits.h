// Bias, penalties and masked tokens of several rows of logits, in one node (see
// kernels/cpu/edit_logits.h).

#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/edit_logits.h"
#include "mlx/array.h"

namespace pomona::ops {

// Logits [W, V] as float32, row i after edits[i]. unread: int32 tokens that may not have been
// computed yet, for edits that name one. Throws std::invalid_argument when the numbers or dtypes do
// not fit.
mlx::core::array edit_logits(const mlx::core::array& logits, std::vector<kernels::LogitEdits> edits,
                             const std::optional<mlx::core::array>& unread);

}  // namespace pomona::ops
