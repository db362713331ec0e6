#include "core/radix_tree.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace pomona::core {
namespace {

constexpr std::size_t kBlock = 4;
constexpr std::size_t kAll = SIZE_MAX;

using Blocks = std::vector<BlockId>;
using Tokens = std::vector<Token>;

Tokens sequence(std::size_t size, Token first = 0) {
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Fixture {
  BlockPool pool{64};
  RadixTree tree{pool, kBlock};

  // A row that computes `tokens` from nothing, publishes them and keeps its references.
  Blocks publish(const Tokens& tokens, Namespace space = 0) {
    const Blocks own = pool.allocate((tokens.size() + kBlock - 1) / kBlock);
    return tree.insert(tokens, own, space);
  }
  // The same, and the row ends.
  Blocks store(const Tokens& tokens, Namespace space = 0) {
    const Blocks blocks = publish(tokens, space);
    pool.release(blocks);
    return blocks;
  }
  // A request that goes on from what is cached, with a copy of its last, partly filled block.
  Blocks resume(const Tokens& tokens) {
    const Match match = tree.match(tokens, kAll);
    Blocks row = match.blocks;
    if (match.tokens % kBlock != 0) row.back() = pool.copy_on_write(row.back());
    const StepNumber step = pool.begin_step();
    pool.take_copies(step, row);
    pool.complete_step(step);
    const Blocks more = pool.allocate((tokens.size() + kBlock - 1) / kBlock - row.size());
    row.insert(row.end(), more.begin(), more.end());
    return tree.insert(tokens, row);
  }
  // A request that matches and ends.
  std::size_t use(const Tokens& tokens, std::size_t limit = kAll) {
    const Match match = tree.match(tokens, limit);
    pool.release(match.blocks);
    return match.tokens;
  }
};

void finds_the_longest_prefix() {
  Fixture f;
  const Blocks blocks = f.store(sequence(10));
  CHECK(f.tree.nodes() == 1 && f.tree.tokens() == 10 && f.pool.idle() == 3);

  Match match = f.tree.match(sequence(7) + Tokens{99}, kAll);
  CHECK(match.tokens == 7 && match.snapshot == 0);
  CHECK((match.blocks == Blocks{blocks[0], blocks[1]}));
  CHECK(f.pool.row_references(blocks[1]) == 1 && f.pool.row_references(blocks[2]) == 0);
  CHECK(f.tree.nodes() == 1);  // a match splits nothing

  CHECK(f.tree.peek(sequence(20), kAll) == 10);
  CHECK(f.tree.peek(sequence(20), 5) == 5);
  CHECK(f.tree.peek(Tokens{5}, kAll) == 0);
  CHECK(f.tree.peek({}, kAll) == 0);
  CHECK(f.tree.match(sequence(20), 0).blocks.empty());
}

void keeps_namespaces_apart() {
  Fixture f;
  f.store(sequence(8), 1);
  CHECK(f.tree.peek(sequence(8), kAll) == 0);
  CHECK(f.tree.peek(sequence(8), kAll, 1) == 8);
  f.store(sequence(8), 2);
  CHECK(f.tree.clear(1).blocks == 2);
  CHECK(f.tree.peek(sequence(8), kAll, 1) == 0 && f.tree.peek(sequence(8), kAll, 2) == 8);
  CHECK(f.tree.clear(7).blocks == 0);
}

void stores_equal_prefixes_once() {
  Fixture f;
  const Blocks first = f.publish(sequence(10));
  const Blocks second = f.publish(sequence(10));
  CHECK(second[0] == first[0] && second[1] == first[1]);
  CHECK(second[2] != first[2]);  // still being written by its row
  CHECK(f.pool.row_references(first[0]) == 2);
  CHECK(f.pool.in_use() == 4);
}

void grows_a_leaf_in_place() {
  Fixture f;
  const Blocks blocks = f.pool.allocate(3);
  f.tree.insert(sequence(3), Blocks{blocks[0]});
  f.tree.insert(sequence(6), Blocks{blocks[0], blocks[1]});
  f.tree.insert(sequence(12), blocks);
  CHECK(f.tree.nodes() == 1 && f.tree.tokens() == 12);
  CHECK(f.tree.match(sequence(12), kAll).blocks == blocks);
}

void a_longer_partial_block_replaces_a_leafs() {
  Fixture f;
  const Blocks old = f.store(sequence(6));
  const Blocks row = f.resume(sequence(8));
  CHECK(row[0] == old[0] && row[1] != old[1]);
  CHECK(f.tree.nodes() == 1 && f.pool.idle() == 0 && f.pool.in_use() == 2);
  CHECK(f.tree.match(sequence(8), kAll).blocks == row);
}

void a_longer_partial_block_replaces_those_above() {
  Fixture f;
  const Blocks old = f.store(sequence(7));
  f.tree.attach_snapshot(sequence(5), 1);
  f.tree.attach_snapshot(sequence(6), 2);
  CHECK(f.tree.nodes() == 3 && f.pool.tree_references(old[1]) == 3);
  const Blocks row = f.resume(sequence(8));  // grows the leaf
  CHECK(f.tree.nodes() == 3 && f.pool.idle() == 0);
  CHECK((f.tree.match(sequence(5), kAll).blocks == row));

  Fixture g;
  g.store(sequence(6));
  g.tree.attach_snapshot(sequence(6), 1);
  g.resume(sequence(8));  // adds a child
  CHECK(g.tree.nodes() == 2 && g.pool.idle() == 0);
}

void splits_inside_a_block() {
  Fixture f;
  const Blocks first = f.store(sequence(12));
  const Tokens other = sequence(6) + sequence(6, 100);
  const Blocks second = f.store(other);
  CHECK(f.tree.nodes() == 3 && f.tree.tokens() == 18);
  CHECK(second[0] == first[0] && second[1] != first[1]);
  CHECK(f.pool.tree_references(first[1]) == 2);  // both halves of the split
  CHECK(f.tree.match(sequence(12), kAll).blocks == first);
  CHECK(f.tree.match(other, kAll).blocks == second);
  CHECK((f.tree.match(sequence(6), kAll).blocks == Blocks{first[0], first[1]}));
}

void resumes_only_at_snapshots() {
  Fixture f;
  const Blocks blocks = f.store(sequence(12));
  CHECK(f.tree.attach_snapshot(sequence(13), 7) == -1);
  CHECK(f.tree.attach_snapshot(sequence(6), 7) == 0);
  CHECK(f.tree.attach_snapshot(sequence(10), 8) == 0);
  CHECK(f.tree.nodes() == 3);
  CHECK(f.tree.peek(sequence(12), kAll, 0, true) == 10);
  CHECK(f.tree.peek(sequence(12), 9, 0, true) == 6);
  CHECK(f.tree.peek(sequence(12), 5, 0, true) == 0);

  const Match match = f.tree.match(sequence(12), 9, 0, true);
  CHECK(match.tokens == 6 && match.snapshot == 7);
  CHECK((match.blocks == Blocks{blocks[0], blocks[1]}));
  CHECK((f.tree.snapshots() == std::vector<Snapshot>{8, 7}));
  CHECK(f.tree.match(sequence(6), kAll).snapshot == 7);
  CHECK(f.tree.match(sequence(7), kAll).snapshot == 0);

  CHECK(f.tree.attach_snapshot(sequence(10), 9) == 8);
  CHECK(!f.tree.drop_snapshot(8) && f.tree.drop_snapshot(9));
  CHECK(f.tree.peek(sequence(12), kAll, 0, true) == 6);
  CHECK_THROWS(f.tree.attach_snapshot(sequence(10), 7), std::invalid_argument);
  CHECK_THROWS(f.tree.attach_snapshot(sequence(10), 0), std::invalid_argument);
  CHECK_THROWS(f.tree.attach_snapshot({}, 5), std::invalid_argument);
}

void a_leaf_with_a_snapshot_does_not_grow() {
  Fixture f;
  const Blocks blocks = f.pool.allocate(3);
  f.tree.insert(sequence(6), Blocks{blocks[0], blocks[1]});
  f.tree.attach_snapshot(sequence(6), 1);
  f.tree.insert(sequence(12), blocks);
  CHECK(f.tree.nodes() == 2);
  CHECK(f.tree.peek(sequence(12), kAll, 0, true) == 6);
  CHECK(f.tree.peek(sequence(12), kAll) == 12);
}

void trims_from_the_end() {
  Fixture f;
  f.store(sequence(14));
  f.tree.attach_snapshot(sequence(14), 3);
  const Eviction eviction = f.tree.evict(1);
  CHECK(eviction.blocks == 1 && eviction.snapshots == std::vector<Snapshot>{3});
  CHECK(f.tree.peek(sequence(14), kAll) == 12 && f.tree.tokens() == 12);
  CHECK(f.tree.evict(2).blocks == 2 && f.tree.peek(sequence(14), kAll) == 4);
  CHECK(f.tree.evict(5).blocks == 1 && f.tree.nodes() == 0 && f.pool.free() == 64);
  CHECK(f.tree.evict(5).blocks == 0);
}

void evicts_the_oldest_leaf_first() {
  Fixture f;
  f.store(sequence(8));
  f.store(sequence(8, 100));
  f.store(sequence(8, 200));
  f.tree.evict(2);
  CHECK(f.tree.peek(sequence(8), kAll) == 0);
  CHECK(f.tree.peek(sequence(8, 100), kAll) == 8 && f.tree.peek(sequence(8, 200), kAll) == 8);
}

void spares_what_was_used_again() {
  Fixture f;
  f.store(sequence(8));
  f.use(sequence(8));
  f.store(sequence(8, 100));
  f.store(sequence(8, 200));
  f.tree.evict(4);  // newer, but used once
  CHECK(f.tree.peek(sequence(8), kAll) == 8 && f.pool.idle() == 2);
  f.tree.evict(1);
  CHECK(f.tree.peek(sequence(8), kAll) == 4);
}

void a_reused_head_does_not_shield_its_tail() {
  Fixture f;
  f.store(sequence(8));
  f.use(sequence(8));
  f.store(sequence(16, 100));
  f.use(sequence(16, 100), 5);  // two blocks of four
  f.tree.evict(3);              // the tail, then, both being protected, of the older
  CHECK(f.tree.peek(sequence(8), kAll) == 4 && f.tree.peek(sequence(16, 100), kAll) == 8);
}

void never_touches_blocks_in_use() {
  Fixture f;
  const Blocks row = f.publish(sequence(8));
  f.store(sequence(4) + sequence(4, 100));
  CHECK(f.tree.evict(100).blocks == 1);
  CHECK(f.tree.peek(sequence(8), kAll) == 8);
  CHECK(f.tree.clear().blocks == 0 && f.tree.nodes() == 2);
  f.pool.release(row);
  CHECK(f.tree.clear().blocks == 2 && f.tree.nodes() == 0 && f.tree.tokens() == 0);
}

void a_block_shared_by_a_split_is_freed_once() {
  Fixture f;
  f.store(sequence(8));
  f.tree.attach_snapshot(sequence(6), 1);
  CHECK(f.pool.idle() == 2);
  CHECK(f.tree.evict(1).blocks == 1);  // takes the lower half for nothing, then the upper's tail
  CHECK(f.tree.nodes() == 1 && f.tree.peek(sequence(8), kAll) == 4);
}

void a_sole_child_shares_its_first_block() {
  Fixture f;
  const Blocks first = f.store(sequence(8));
  const Blocks second = f.publish(sequence(6) + sequence(2, 100));
  CHECK(f.pool.idle() == 1 && f.tree.nodes() == 3);
  // With the other branch gone, the block it left in the common part frees too.
  CHECK(f.tree.evict(1).blocks == 1 && f.pool.idle() == 0);
  CHECK(f.pool.tree_references(first[1]) == 0);
  CHECK((f.tree.match(sequence(6), kAll).blocks == second));
}

void waits_for_steps_in_flight() {
  Fixture f;
  f.store(sequence(8));
  const StepNumber step = f.pool.begin_step();
  CHECK(f.tree.evict(2).blocks == 2);
  CHECK(f.pool.quarantined() == 2 && f.pool.free() == 62);
  f.pool.complete_step(step);
  CHECK(f.pool.free() == 64);
}

void refuses_without_a_trace() {
  Fixture f;
  const Blocks blocks = f.pool.allocate(2);
  CHECK_THROWS(f.tree.insert(sequence(9), blocks), std::invalid_argument);
  CHECK_THROWS(f.tree.insert(sequence(8), Blocks{blocks[0], 60}), std::invalid_argument);
  CHECK_THROWS(f.tree.insert(sequence(8), Blocks{blocks[0], -1}), std::invalid_argument);
  CHECK_THROWS(RadixTree(f.pool, 0), std::invalid_argument);
  CHECK(f.tree.nodes() == 0 && f.tree.insert({}, {}).empty());
}

void lets_go_of_its_blocks() {
  BlockPool pool(8);
  {
    RadixTree tree(pool, kBlock);
    const Blocks blocks = pool.allocate(2);
    tree.insert(sequence(8), blocks);
    pool.release(blocks);
    CHECK(pool.idle() == 2);
  }
  CHECK(pool.free() == 8);
}

void compares_prefixes() {
  const Tokens a = sequence(1000);
  for (std::size_t differs : {0, 1, 63, 64, 65, 127, 128, 999}) {
    Tokens b = a;
    b[differs] = -1;
    CHECK(common_prefix(a, b) == differs);
  }
  CHECK(common_prefix(a, sequence(70)) == 70 && common_prefix(a, {}) == 0);
}

// Many overlapping prompts under pressure: nothing leaks, counts add up.
void survives_churn() {
  std::mt19937 random(1);
  BlockPool pool(200);
  RadixTree tree(pool, kBlock);
  Snapshot snapshot = 0;
  for (int round = 0; round < 4000; ++round) {
    Tokens tokens(1 + random() % 60);
    for (Token& token : tokens) token = random() % 8 == 0;
    const Match match = tree.match(tokens, tokens.size() - 1, random() % 2, random() % 4 == 0);
    Blocks row = match.blocks;
    const std::size_t need = (tokens.size() + kBlock - 1) / kBlock - row.size() + 1;
    if (need > pool.free()) tree.evict(need - pool.free());
    const StepNumber step = pool.begin_step();
    if (match.tokens % kBlock != 0) row.back() = pool.copy_on_write(row.back());
    const Blocks more = pool.allocate((tokens.size() + kBlock - 1) / kBlock - row.size());
    row.insert(row.end(), more.begin(), more.end());
    pool.take_copies(step, row);
    row = tree.insert(tokens, row, round % 2);
    CHECK(tree.peek(tokens, kAll, round % 2) == tokens.size());
    if (random() % 3 == 0) tree.attach_snapshot(tokens, ++snapshot, round % 2);
    pool.complete_step(step);
    pool.release(row);
    CHECK(pool.in_use() == 0 && pool.free() + pool.idle() == 200);
  }
  CHECK(tree.nbytes() > 0 && !tree.snapshots().empty());
  tree.clear();
  CHECK(pool.free() == 200 && tree.nodes() == 0 && tree.tokens() == 0 && tree.snapshots().empty());
}

}  // namespace
}  // namespace pomona::core

int main() {
  using namespace pomona::core;
  return run_tests(
      {{"finds the longest prefix", finds_the_longest_prefix},
       {"keeps namespaces apart", keeps_namespaces_apart},
       {"stores equal prefixes once", stores_equal_prefixes_once},
       {"grows a leaf in place", grows_a_leaf_in_place},
       {"a longer partial block replaces a leaf's", a_longer_partial_block_replaces_a_leafs},
       {"a longer partial block replaces those above", a_longer_partial_block_replaces_those_above},
       {"splits inside a block", splits_inside_a_block},
       {"resumes only at snapshots", resumes_only_at_snapshots},
       {"a leaf with a snapshot does not grow", a_leaf_with_a_snapshot_does_not_grow},
       {"trims from the end", trims_from_the_end},
       {"evicts the oldest leaf first", evicts_the_oldest_leaf_first},
       {"spares what was used again", spares_what_was_used_again},
       {"a reused head does not shield its tail", a_reused_head_does_not_shield_its_tail},
       {"never touches blocks in use", never_touches_blocks_in_use},
       {"a block shared by a split is freed once", a_block_shared_by_a_split_is_freed_once},
       {"a sole child shares its first block", a_sole_child_shares_its_first_block},
       {"waits for steps in flight", waits_for_steps_in_flight},
       {"refuses without a trace", refuses_without_a_trace},
       {"lets go of its blocks", lets_go_of_its_blocks},
       {"compares prefixes", compares_prefixes},
       {"survives churn", survives_churn}});
}
