// Where each token row of one model call writes and what it sees; shared by all layers.
//
// Ownership: holds copies. Immutable once made (what is computed on demand is guarded), so
// primitives on any thread may read one.

#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cpu/paged_attention.h"

namespace pomona::ops {

class StepTable {
 public:
  // tables: [sequences, width] block ids, -1 where unused; sequence, visible, slots: one entry per
  // token row; copies: pairs (source, destination). Throws std::invalid_argument, naming the entry,
  // on anything that points outside.
  StepTable(int block_size, std::span<const int32_t> tables, int64_t width,
            std::span<const int32_t> sequence, std::span<const int32_t> visible,
            std::span<const int32_t> slots, std::span<const int32_t> copies);

  int block_size() const { return block_size_; }
  int64_t tokens() const { return static_cast<int64_t>(slots_.size()); }
  int64_t sequences() const { return sequences_; }

  // How many blocks a slab must have for every entry to lie inside it.
  int64_t blocks_needed() const { return blocks_needed_; }

  std::span<const int32_t> table(int64_t sequence) const {
    return std::span(tables_).subspan(sequence * width_, width_);
  }
  std::span<const int32_t> sequence() const { return sequence_; }
  std::span<const int32_t> visible() const { return visible_; }
  std::span<const int32_t> slots() const { return slots_; }
  std::span<const int32_t> copies() const { return copies_; }

  kernels::RowTables rows() const {
    return {tables_.data(), width_, sequence_.data(), visible_.data(), tokens()};
  }

  // Cosines and sines of each token row's position (its `visible` - 1) times the frequencies, [T, 2
  // * frequencies] as in fill_angles. Made once for equal frequencies: the layers of a step share
  // them.
  const float* angles(std::span<const float> frequencies) const;

 private:
  int block_size_;
  int64_t width_, sequences_ = 0, blocks_needed_ = 0;
  std::vector<int32_t> tables_, sequence_, visible_, slots_, copies_;

  struct Angles {
    std::vector<float> frequencies, values;
  };
  mutable std::mutex angles_mutex_;
  mutable std::deque<Angles> angles_;  // grows without moving what it holds
};

}  // namespace pomona::ops
