#include "core/free_runs.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace pomona::core {

void FreeRuns::give(BlockId first, std::int32_t count) {
  auto next = by_start_.lower_bound(first);
  if (next != by_start_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      first = previous->first;
      count += previous->second;
      by_length_.erase({previous->second, previous->first});
      by_start_.erase(previous);
    }
  }
  if (next != by_start_.end() && first + count == next->first) {
    count += next->second;
    by_length_.erase({next->second, next->first});
    by_start_.erase(next);
  }
  by_start_.emplace(first, count);
  by_length_.emplace(count, first);
}

void FreeRuns::take(std::int32_t count, BlockId after, std::vector<BlockId>& out) {
  if (after >= 0 && count > 0) {
    if (auto run = by_start_.find(after + 1); run != by_start_.end()) count -= cut(run, count, out);
  }
  while (count > 0) count -= cut(best_run(count), count, out);
}

FreeRuns::ByStart::iterator FreeRuns::best_run(std::int32_t count) {
  auto fit = by_length_.lower_bound({count, 0});
  if (fit == by_length_.end()) fit = by_length_.lower_bound({by_length_.rbegin()->first, 0});
  return by_start_.find(fit->second);
}

// Takes up to `count` blocks from the front of `run`; returns how many.
std::int32_t FreeRuns::cut(ByStart::iterator run, std::int32_t count, std::vector<BlockId>& out) {
  const auto [first, length] = *run;
  const std::int32_t taken = std::min(count, length);
  out.resize(out.size() + taken);
  std::iota(out.end() - taken, out.end(), first);

  by_length_.erase({length, first});
  by_start_.erase(run);
  if (taken < length) {
    by_start_.emplace(first + taken, length - taken);
    by_length_.emplace(length - taken, first + taken);
  }
  return taken;
}

}  // namespace pomona::core
