#include "ops/row_tables.h"

#include <algorithm>
#include <vector>

#include "ops/require.h"

namespace pomona::ops {
namespace {

constexpr Require require{"StepTable.of_rows"};

}  // namespace

std::shared_ptr<const StepTable> table_of_rows(int block_size,
                                               std::span<const std::span<const int32_t>> blocks,
                                               std::span<const int32_t> starts,
                                               std::span<const int32_t> counts,
                                               std::span<const int32_t> copies) {
  const size_t rows = blocks.size();
  require(block_size > 0, "block_size must be at least 1, got ", block_size);
  require(starts.size() == rows && counts.size() == rows, "there are ", rows, " tables but ",
          starts.size(), " starts and ", counts.size(), " counts");
  size_t width = 0;
  for (const auto table : blocks) width = std::max(width, table.size());
  std::vector<int32_t> tables(rows * width, -1), sequence, visible, slots;
  for (size_t i = 0; i < rows; i++) {
    const int64_t start = starts[i], end = start + counts[i];
    require(start >= 0 && counts[i] >= 0, "row ", i, " runs ", counts[i], " tokens from ", start);
    require(end <= static_cast<int64_t>(blocks[i].size()) * block_size, "row ", i,
            " ends at token ", end, ", but its table has ", blocks[i].size(), " blocks");
    std::ranges::copy(blocks[i], tables.begin() + i * width);
    sequence.insert(sequence.end(), counts[i], static_cast<int32_t>(i));
    for (int64_t at = start; at < end; at++) {
      visible.push_back(static_cast<int32_t>(at + 1));
      slots.push_back(
          static_cast<int32_t>(blocks[i][at / block_size] * block_size + at % block_size));
    }
  }
  return std::make_shared<const StepTable>(block_size, tables, static_cast<int64_t>(width),
                                           sequence, visible, slots, copies);
}

}  // namespace pomona::ops
