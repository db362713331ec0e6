#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/free_runs.h"

namespace pomona::core {

// Steps are numbered from 1 in the order they are begun.
using StepNumber = std::int64_t;

// Fewer blocks are free than were asked for. Nothing was allocated.
class OutOfBlocksError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A copy that a step makes before anything else.
struct BlockCopy {
  BlockId source;
  BlockId destination;
};

// Reference counts of one model's blocks. A row reference is held by a running sequence, a tree
// reference by the radix tree. Each block is in one state:
//
//   in use       some row reference
//   idle         tree references only; kept until evicted
//   quarantined  no reference, but a step in flight may still read or write it
//   free         may be handed out
//
// Wrong arguments throw std::invalid_argument and change nothing.
//
// Thread-safety: none; one thread at a time.
// Ownership: holds numbers only. Trees over the pool must not outlive it.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t blocks);

  std::size_t capacity() const { return blocks_.size(); }
  std::size_t free() const { return count(State::kFree); }
  std::size_t idle() const { return count(State::kIdle); }
  std::size_t in_use() const { return count(State::kInUse); }
  std::size_t quarantined() const { return count(State::kQuarantined); }
  // What rows can get once steps complete and the tree evicts.
  std::size_t available() const { return capacity() - in_use(); }
  // One more than the highest block ever handed out.
  std::size_t high_water() const { return high_water_; }

  // Takes free blocks, each with one row reference, in the order FreeRuns::take prefers.
  std::vector<BlockId> allocate(std::int64_t count, std::int64_t after = -1);

  // Adds or drops one row reference for each entry. Only blocks in use or idle can be retained.
  void retain(std::span<const BlockId> blocks);
  void release(std::span<const BlockId> blocks);

  // Makes `block` writable for the caller, who holds one row reference on it. Returns `block`
  // itself when nobody else holds it, else a new block, after noting the copy. The caller's
  // reference on `block` then belongs to that note until the step that takes the copy completes. A
  // note is forgotten if its destination loses all references before a step has taken it.
  BlockId copy_on_write(std::int64_t block, std::int64_t after = -1);

  // Opens the next step. Blocks freed from now on wait for its end.
  StepNumber begin_step() { return ++begun_; }
  // The noted copies into any of `writes`, in the order they must be made; `step`, in flight, makes
  // them before it writes there. The others wait for the step that does. A copy must not be taken
  // before the one into its source.
  std::vector<BlockCopy> take_copies(StepNumber step, std::span<const BlockId> writes);
  // Steps up to `step` have run: nothing they listed is being read or written any more.
  void complete_step(StepNumber step);

  // For the radix tree only. `tree_release` returns whether that was the last reference of any
  // kind.
  void tree_retain(BlockId block);
  bool tree_release(BlockId block);

  std::uint32_t row_references(std::int64_t block) const { return blocks_[checked(block)].rows; }
  std::uint32_t tree_references(std::int64_t block) const { return blocks_[checked(block)].trees; }

 private:
  enum class State : std::uint8_t { kFree, kInUse, kIdle, kQuarantined };
  static constexpr std::size_t kStates = 4;

  struct Block {
    std::uint32_t rows = 0;
    std::uint32_t trees = 0;
    State state = State::kFree;
  };
  struct Waiting {
    StepNumber step;
    BlockId block;
  };

  std::size_t count(State state) const { return counts_[static_cast<std::size_t>(state)]; }
  std::size_t checked(std::int64_t block) const;
  void move(Block& block, State state);
  void settle(BlockId id);
  void forget_copies_into(BlockId destination);
  bool in_flight() const { return begun_ > completed_; }

  std::vector<Block> blocks_;
  std::array<std::size_t, kStates> counts_{};
  FreeRuns free_runs_;
  std::size_t high_water_ = 0;

  StepNumber begun_ = 0;
  StepNumber completed_ = 0;
  std::deque<Waiting> quarantine_;  // by step, which never decreases
  std::vector<BlockCopy> noted_;    // not yet taken by a step
  std::vector<Waiting> sources_;    // of copies that steps in flight make
};

}  // namespace pomona::core
