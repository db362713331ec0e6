// The table of a step from what its rows are: tokens [start, start + count) of each.

#pragma once

#include <memory>
#include <span>

#include "ops/step_table.h"

namespace pomona::ops {

// blocks[i]: the block table of row i; its token rows follow those of row i - 1, see all tokens of
// their row up to themselves, and write into the block of their position. copies: as in StepTable.
// Throws std::invalid_argument when the numbers of rows differ or a table is too short.
std::shared_ptr<const StepTable> table_of_rows(int block_size,
                                               std::span<const std::span<const int32_t>> blocks,
                                               std::span<const int32_t> starts,
                                               std::span<const int32_t> counts,
                                               std::span<const int32_t> copies);

}  // namespace pomona::ops
