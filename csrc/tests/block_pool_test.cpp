#include "core/block_pool.h"

#include <stdexcept>
#include <vector>

#include "check.h"

namespace pomona::core {
namespace {

using Blocks = std::vector<BlockId>;

bool adds_up(const BlockPool& pool) {
  return pool.free() + pool.idle() + pool.in_use() + pool.quarantined() == pool.capacity() &&
         pool.available() == pool.capacity() - pool.in_use();
}

void allocates_in_runs() {
  BlockPool pool(16);
  const Blocks all = pool.allocate(16);
  CHECK((all == Blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  CHECK(pool.high_water() == 16 && pool.free() == 0);

  pool.release(Blocks{1, 2, 3, 6, 7, 9, 10, 13});  // runs of 3, 2, 2 and 1
  CHECK((pool.allocate(2) == Blocks{6, 7}));       // best fit, the lower of two
  CHECK((pool.allocate(1, 0) == Blocks{1}));       // continues block 0 rather than filling 13
  CHECK((pool.allocate(1) == Blocks{13}));         // best fit
  CHECK((pool.allocate(3, 8) == Blocks{9, 10, 2}));
  CHECK((pool.allocate(1) == Blocks{3}));

  pool.release(Blocks{0, 4, 5, 8});
  CHECK((pool.allocate(3) == Blocks{4, 5, 0}));  // nothing fits: longest first, then the lowest
  CHECK(adds_up(pool));
}

void merges_neighbouring_runs() {
  BlockPool pool(8);
  pool.allocate(8);
  pool.release(Blocks{2, 4, 3, 1, 5});
  CHECK((pool.allocate(5) == Blocks{1, 2, 3, 4, 5}));
  CHECK(pool.allocate(0).empty());
}

void counts_references() {
  BlockPool pool(4);
  pool.allocate(2);
  pool.retain(Blocks{0, 0});
  CHECK(pool.row_references(0) == 3);
  pool.release(Blocks{0, 0, 1});
  CHECK(pool.in_use() == 1 && pool.free() == 3);
  pool.tree_retain(0);
  pool.release(Blocks{0});
  CHECK(pool.idle() == 1 && pool.in_use() == 0);
  pool.retain(Blocks{0});
  CHECK(pool.idle() == 0 && pool.in_use() == 1);
  CHECK(!pool.tree_release(0));
  pool.release(Blocks{0});
  CHECK(pool.free() == 4 && adds_up(pool));
}

void refuses_without_a_trace() {
  BlockPool pool(4);
  pool.allocate(2);
  CHECK_THROWS(pool.allocate(3), OutOfBlocksError);
  CHECK_THROWS(pool.allocate(-1), std::invalid_argument);
  CHECK_THROWS(pool.allocate(1, 4), std::invalid_argument);
  CHECK_THROWS(pool.release(Blocks{0, 1, 0}), std::invalid_argument);
  CHECK_THROWS(pool.release(Blocks{0, 9}), std::invalid_argument);
  CHECK_THROWS(pool.retain(Blocks{0, 3}), std::invalid_argument);
  CHECK_THROWS(pool.retain(Blocks{0, -1}), std::invalid_argument);
  CHECK_THROWS(pool.tree_retain(3), std::invalid_argument);
  CHECK_THROWS(pool.tree_release(0), std::invalid_argument);
  CHECK_THROWS(pool.copy_on_write(3), std::invalid_argument);
  CHECK_THROWS(pool.take_copies(1, {}), std::invalid_argument);
  CHECK_THROWS(pool.complete_step(1), std::invalid_argument);
  CHECK_THROWS(BlockPool(0), std::invalid_argument);
  CHECK(pool.row_references(0) == 1 && pool.row_references(1) == 1 && pool.free() == 2);
}

void quarantines_while_steps_are_in_flight() {
  BlockPool pool(4);
  pool.allocate(4);
  const StepNumber first = pool.begin_step();
  pool.release(Blocks{0});
  const StepNumber second = pool.begin_step();
  pool.release(Blocks{1});
  CHECK(pool.quarantined() == 2 && pool.free() == 0);
  CHECK_THROWS(pool.allocate(1), OutOfBlocksError);
  pool.complete_step(first);
  CHECK(pool.quarantined() == 1 && pool.free() == 1);
  pool.release(Blocks{2});
  CHECK(pool.quarantined() == 2);
  pool.complete_step(second);
  pool.complete_step(first);  // late news change nothing
  CHECK(pool.quarantined() == 0 && pool.free() == 3);
  pool.release(Blocks{3});
  CHECK(pool.free() == 4);
}

void copies_shared_blocks_on_write() {
  BlockPool pool(4);
  pool.allocate(1);
  CHECK(pool.copy_on_write(0) == 0);
  pool.retain(Blocks{0});
  CHECK(pool.copy_on_write(0) == 1);
  CHECK(pool.row_references(0) == 2 && pool.row_references(1) == 1);

  const StepNumber step = pool.begin_step();
  CHECK(pool.take_copies(step, Blocks{0, 2}).empty());  // this step does not write into block 1
  const std::vector<BlockCopy> copies = pool.take_copies(step, Blocks{3, 1});
  CHECK(copies.size() == 1 && copies[0].source == 0 && copies[0].destination == 1);
  CHECK(pool.take_copies(step, Blocks{1}).empty());
  CHECK(pool.row_references(0) == 2);
  pool.complete_step(step);
  CHECK(pool.row_references(0) == 1);

  pool.tree_retain(0);  // the tree is somebody else, too
  CHECK(pool.copy_on_write(0) == 2);
  pool.allocate(1);
  pool.retain(Blocks{3});
  CHECK_THROWS(pool.copy_on_write(3), OutOfBlocksError);
  CHECK(pool.row_references(3) == 2);
}

void forgets_copies_nobody_needs() {
  BlockPool pool(4);
  pool.allocate(1);
  pool.retain(Blocks{0});
  const BlockId copy = pool.copy_on_write(0);
  pool.retain(Blocks{copy});
  const BlockId copy_of_copy = pool.copy_on_write(copy);
  pool.release(Blocks{copy});
  CHECK(pool.row_references(copy) == 1);  // the second note reads it
  pool.release(Blocks{copy_of_copy});     // and goes, and with it the first
  CHECK(pool.row_references(0) == 1 && pool.free() == 3);
  CHECK(pool.take_copies(pool.begin_step(), Blocks{copy, copy_of_copy}).empty());
}

}  // namespace
}  // namespace pomona::core

int main() {
  using namespace pomona::core;
  return run_tests(
      {{"allocates in runs", allocates_in_runs},
       {"merges neighbouring runs", merges_neighbouring_runs},
       {"counts references", counts_references},
       {"refuses without a trace", refuses_without_a_trace},
       {"quarantines while steps are in flight", quarantines_while_steps_are_in_flight},
       {"copies shared blocks on write", copies_shared_blocks_on_write},
       {"forgets copies nobody needs", forgets_copies_nobody_needs}});
}
