// Writes the K/V of a step's token rows into a slab and attends over its blocks, in one node.

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mlx/array.h"
#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// q: [B, Hq, L, D]; k: [B, Hk, L, D]; v: [B, Hk, L, Dv], token row t = b * L + l. Returns
// [B, Hq, L, Dv] in q's dtype, laid out as [B, L, Hq, Dv]. Throws std::invalid_argument when shapes
// or dtypes do not fit the slab and the table.
mlx::core::array update_and_attend(const mlx::core::array& q, const mlx::core::array& k,
                                   const mlx::core::array& v, const Slab& slab,
                                   std::shared_ptr<const StepTable> table, float scale, int window,
                                   const std::optional<mlx::core::array>& sinks);

}  // namespace pomona::ops
