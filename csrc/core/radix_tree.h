#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_pool.h"

namespace pomona::core {

using Token = std::int32_t;
using Namespace = std::uint64_t;
using Snapshot = std::int64_t;  // a handle > 0; 0 is none

// Number of equal leading tokens.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

struct Match {
  std::size_t tokens = 0;
  std::vector<BlockId> blocks;  // ceil(tokens / block_size); the last may be partly covered
  Snapshot snapshot = 0;        // of the state at exactly `tokens`
};

struct Eviction {
  std::size_t blocks = 0;  // without any reference from now on
  std::vector<Snapshot> snapshots;
};

// Maps token prefixes to the blocks that hold their keys and values, inside namespaces.
//
// A node is a compressed edge: the tokens [start, end) of every prefix that runs through it, and
// one block for each block index these touch. Splits fall on any token, so two nodes of one path
// may touch the same index. Each then lists a block of its own for it, which also holds the tokens
// before `start` (a row that diverges inside a block has copied it first), or, after a split, the
// same one. A prefix reads each index from the deepest node that touches it. Every listing is one
// tree reference.
//
// Eviction is leaf first, by segmented LRU. Segments are told apart by block, not by node: `reused`
// is how far a node has been matched since it was made, so a prefix shared with one lucky neighbour
// does not shield the tail that nobody asked for again.
//
// Wrong arguments throw std::invalid_argument and change nothing.
//
// Thread-safety: none; one thread at a time, the same as its pool's.
// Ownership: the tree owns its nodes and one pool reference for each block they list. The pool must
// outlive it. Rows own the references that match() and insert() leave them.
class RadixTree {
 public:
  RadixTree(BlockPool& pool, std::int64_t block_size);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // Longest cached prefix of the first `limit` tokens, each block retained for a row and marked as
  // used. `stateful`: the longest that ends in a snapshot.
  Match match(std::span<const Token> tokens, std::size_t limit, Namespace space = 0,
              bool stateful = false);
  // Length of that prefix; retains and marks nothing.
  std::size_t peek(std::span<const Token> tokens, std::size_t limit, Namespace space = 0,
                   bool stateful = false) const;

  // Publishes computed tokens whose K/V lie in `blocks`, each held by the row. Returns the row's
  // table from now on: where the tree has a full block of the same tokens, the row's reference
  // moves to it. The last, partly filled block stays the row's own: it goes on writing there,
  // behind the tokens it has published.
  std::vector<BlockId> insert(std::span<const Token> tokens, std::span<const BlockId> blocks,
                              Namespace space = 0);

  // Hangs a snapshot on a prefix. Returns the one it replaces or 0, or -1 when the prefix is not
  // cached in full.
  Snapshot attach_snapshot(std::span<const Token> tokens, Snapshot snapshot, Namespace space = 0);
  bool drop_snapshot(Snapshot snapshot);
  // Least recently attached or matched first.
  std::vector<Snapshot> snapshots() const;

  // Frees at least `blocks` idle blocks if that many can be freed, fewer otherwise.
  Eviction evict(std::size_t blocks);
  // Drops everything no row uses, in one namespace or in all.
  Eviction clear(std::optional<Namespace> space = std::nullopt);

  // Without the roots, which hold nothing.
  std::size_t nodes() const { return nodes_.size() - vacant_.size() - roots_.size(); }
  std::size_t tokens() const { return tokens_; }
  // Bytes of the index itself. Walks all nodes.
  std::size_t nbytes() const;

 private:
  using NodeId = std::uint32_t;
  using Tick = std::uint64_t;
  static constexpr NodeId kNone = UINT32_MAX;

  struct Child {
    Token first;
    NodeId node;
  };
  struct Node {
    std::size_t end() const { return start + tokens.size(); }

    std::vector<Token> tokens;
    std::vector<BlockId> blocks;  // from index start / block_size
    std::vector<Child> children;  // sorted by first token
    std::size_t start = 0;
    std::size_t reused = 0;  // tokens before this were matched after they were inserted
    Tick last_use = 0;       // never older than a child's
    Snapshot snapshot = 0;   // of the state at end()
    Tick snapshot_use = 0;
    NodeId parent = kNone;  // of a root
  };
  struct Path {
    std::vector<NodeId> nodes;  // below the root; the last may be matched in part
    std::size_t matched = 0;
  };
  // Probation before protection, then by age. Unique: the nodes of one tick lie on one path, and a
  // path has one leaf.
  using Rank = std::pair<bool, Tick>;

  Path walk(std::span<const Token> tokens, Namespace space) const;
  Path find(std::span<const Token> tokens, std::size_t limit, Namespace space, bool stateful) const;
  std::vector<BlockId> table(const Path& path) const;
  void touch(const Path& path, bool reuse);

  NodeId root(Namespace space);
  NodeId add_node(NodeId parent, std::size_t start);
  void remove_leaf(NodeId id, Token first, Eviction& eviction);
  NodeId split(NodeId id, std::size_t position);
  void extend(NodeId id, std::span<const Token> tokens, std::span<const BlockId> blocks);
  void append(Node& node, std::span<const Token> tokens, std::span<const BlockId> blocks);
  std::size_t share_tail(NodeId id, std::size_t index, BlockId copy);
  void trim(NodeId id, std::size_t keep, std::size_t wanted, Eviction& eviction);
  void drop_snapshot(Node& node, Eviction& eviction);

  std::size_t blocks_for(std::size_t tokens) const {
    return (tokens + block_size_ - 1) / block_size_;
  }
  std::size_t reused_blocks(const Node& node) const;
  Rank rank(const Node& node) const;
  bool is_leaf(const Node& node) const { return node.children.empty() && node.parent != kNone; }
  void enlist(NodeId id);
  void delist(NodeId id);

  BlockPool& pool_;
  std::size_t block_size_;
  std::deque<Node> nodes_;  // by id; references survive growth
  std::vector<NodeId> vacant_;
  std::map<Namespace, NodeId> roots_;
  std::map<Rank, NodeId> leaves_;  // next victim first
  std::unordered_map<Snapshot, NodeId> snapshots_;
  std::size_t tokens_ = 0;
  Tick clock_ = 0;
};

}  // namespace pomona::core
