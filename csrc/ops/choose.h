// Picks one token for each row of logits, in one node (see kernels/cpu/choose.h).

#pragma once

#include <vector>

#include "kernels/cpu/choose.h"
#include "mlx/array.h"

namespace pomona::ops {

// Tokens int32 [W] for logits [W, V] in float32, bfloat16 or float16; kNoToken where a row's
// largest logit is not finite. Throws std::invalid_argument unless there is a rule and an index for
// each row, and the rules are numbers, top_p and min_p from 0 to 1.
mlx::core::array choose(const mlx::core::array& logits, std::vector<kernels::DrawRule> rules,
                        std::vector<uint64_t> indices);

}  // namespace pomona::ops
