#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace pomona::core {

using BlockId = std::int32_t;

// The free blocks of a pool as maximal runs of adjacent ids, so that a row's blocks lie side by
// side where they can: attention reads a run as one strided view.
//
// Thread-safety: none; the pool's owner synchronises.
// Ownership: holds numbers only.
class FreeRuns {
 public:
  // Adds `count` blocks from `first`, none of which may be free already. O(log runs).
  void give(BlockId first, std::int32_t count = 1);

  // Appends `count` blocks to `out`; that many must be free. Prefers the run that continues block
  // `after` (negative: none), then the smallest run that fits, then the longest ones; of equal runs
  // the lowest. O(log runs) for each run it cuts.
  void take(std::int32_t count, BlockId after, std::vector<BlockId>& out);

 private:
  using ByStart = std::map<BlockId, std::int32_t>;

  std::int32_t cut(ByStart::iterator run, std::int32_t count, std::vector<BlockId>& out);
  ByStart::iterator best_run(std::int32_t count);

  ByStart by_start_;                                      // first block -> length
  std::set<std::pair<std::int32_t, BlockId>> by_length_;  // the same runs as (length, first block)
};

}  // namespace pomona::core
