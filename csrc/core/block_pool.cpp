#include "core/block_pool.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace pomona::core {

BlockPool::BlockPool(std::int64_t blocks) {
  if (blocks < 1 || blocks > std::numeric_limits<BlockId>::max()) {
    throw std::invalid_argument("a pool needs 1 to 2147483647 blocks, not " +
                                std::to_string(blocks));
  }
  blocks_.resize(blocks);
  counts_[static_cast<std::size_t>(State::kFree)] = blocks;
  free_runs_.give(0, static_cast<std::int32_t>(blocks));
}

std::vector<BlockId> BlockPool::allocate(std::int64_t count, std::int64_t after) {
  if (count < 0) {
    throw std::invalid_argument("cannot allocate " + std::to_string(count) + " blocks");
  }
  if (after != -1) checked(after);
  if (static_cast<std::size_t>(count) > free()) {
    throw OutOfBlocksError(std::to_string(count) + " blocks were asked for, " +
                           std::to_string(free()) + " are free");
  }
  std::vector<BlockId> taken;
  taken.reserve(count);
  free_runs_.take(static_cast<std::int32_t>(count), static_cast<BlockId>(after), taken);
  for (BlockId id : taken) {
    blocks_[id].rows = 1;
    settle(id);
    high_water_ = std::max(high_water_, static_cast<std::size_t>(id) + 1);
  }
  return taken;
}

void BlockPool::retain(std::span<const BlockId> blocks) {
  for (BlockId id : blocks) {
    const Block& block = blocks_[checked(id)];
    if (block.rows == 0 && block.trees == 0) {
      throw std::invalid_argument("block " + std::to_string(id) +
                                  " cannot be retained: nothing holds it");
    }
  }
  for (BlockId id : blocks) {
    ++blocks_[id].rows;
    settle(id);
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  // A list may name a block more often than it is held, so counts go down before any state moves:
  // on an error they go up again.
  std::size_t done = 0;
  try {
    for (; done < blocks.size(); ++done) {
      Block& block = blocks_[checked(blocks[done])];
      if (block.rows == 0) {
        throw std::invalid_argument("block " + std::to_string(blocks[done]) +
                                    " cannot be released: no row holds it");
      }
      --block.rows;
    }
  } catch (const std::invalid_argument&) {
    for (BlockId id : blocks.first(done)) ++blocks_[id].rows;
    throw;
  }
  for (BlockId id : blocks) settle(id);
}

BlockId BlockPool::copy_on_write(std::int64_t block, std::int64_t after) {
  const Block& source = blocks_[checked(block)];
  if (source.rows == 0) {
    throw std::invalid_argument("block " + std::to_string(block) +
                                " cannot be made writable: no row holds it");
  }
  const auto id = static_cast<BlockId>(block);
  if (source.rows == 1 && source.trees == 0) return id;
  const BlockId copy = allocate(1, after).front();
  noted_.push_back({id, copy});
  return copy;
}

std::vector<BlockCopy> BlockPool::take_copies(StepNumber step, std::span<const BlockId> writes) {
  if (step <= completed_ || step > begun_) {
    throw std::invalid_argument("step " + std::to_string(step) + " is not in flight");
  }
  const auto taken = std::ranges::stable_partition(noted_, [writes](const BlockCopy& copy) {
    return std::ranges::find(writes, copy.destination) == writes.end();
  });
  for (const BlockCopy& copy : taken) sources_.push_back({step, copy.source});
  const std::vector<BlockCopy> copies(taken.begin(), taken.end());
  noted_.erase(taken.begin(), taken.end());
  return copies;
}

void BlockPool::complete_step(StepNumber step) {
  if (step < 0 || step > begun_) {
    throw std::invalid_argument("step " + std::to_string(step) + " was never begun");
  }
  completed_ = std::max(completed_, step);

  const auto done = std::stable_partition(sources_.begin(), sources_.end(),
                                          [step](const Waiting& w) { return w.step > step; });
  for (auto it = done; it != sources_.end(); ++it) {
    --blocks_[it->block].rows;
    settle(it->block);
  }
  sources_.erase(done, sources_.end());

  for (; !quarantine_.empty() && quarantine_.front().step <= step; quarantine_.pop_front()) {
    const BlockId id = quarantine_.front().block;
    move(blocks_[id], State::kFree);
    free_runs_.give(id);
  }
}

void BlockPool::tree_retain(BlockId id) {
  Block& block = blocks_[checked(id)];
  if (block.rows == 0 && block.trees == 0) {
    throw std::invalid_argument("block " + std::to_string(id) +
                                " cannot enter the tree: nothing holds it");
  }
  ++block.trees;
}

bool BlockPool::tree_release(BlockId id) {
  Block& block = blocks_[checked(id)];
  if (block.trees == 0) {
    throw std::invalid_argument("block " + std::to_string(id) + " is not in the tree");
  }
  --block.trees;
  settle(id);
  return block.rows == 0 && block.trees == 0;
}

std::size_t BlockPool::checked(std::int64_t block) const {
  if (block < 0 || block >= static_cast<std::int64_t>(blocks_.size())) {
    throw std::invalid_argument("block " + std::to_string(block) + " is outside the pool of " +
                                std::to_string(blocks_.size()) + " blocks");
  }
  return static_cast<std::size_t>(block);
}

void BlockPool::move(Block& block, State state) {
  --counts_[static_cast<std::size_t>(block.state)];
  ++counts_[static_cast<std::size_t>(state)];
  block.state = state;
}

// Brings a block's state in line with its counts.
void BlockPool::settle(BlockId id) {
  Block& block = blocks_[id];
  if (block.rows > 0) {
    move(block, State::kInUse);
  } else if (block.trees > 0) {
    move(block, State::kIdle);
  } else if (block.state == State::kInUse || block.state == State::kIdle) {
    if (in_flight()) {
      move(block, State::kQuarantined);
      quarantine_.push_back({begun_, id});
    } else {
      move(block, State::kFree);
      free_runs_.give(id);
    }
    forget_copies_into(id);
  }
}

// Without this a later owner of `destination` would find a stranger's copy made into it.
void BlockPool::forget_copies_into(BlockId destination) {
  const auto note = std::ranges::find(noted_, destination, &BlockCopy::destination);
  if (note == noted_.end()) return;
  const BlockId source = note->source;
  noted_.erase(note);
  --blocks_[source].rows;
  settle(source);
}

}  // namespace pomona::core
