#include "core/radix_tree.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

namespace pomona::core {
namespace {

// An edge grows with its row, chunk after chunk, and then stays: spare room is an eighth, not the
// doubling of std::vector.
template <typename T>
void append_tightly(std::vector<T>& to, std::span<const T> values) {
  const std::size_t size = to.size() + values.size();
  if (size > to.capacity()) to.reserve(to.empty() ? size : size + size / 8);
  to.insert(to.end(), values.begin(), values.end());
}

template <typename T>
void shrink(std::vector<T>& values) {
  if (values.capacity() > values.size() + values.size() / 4) values.shrink_to_fit();
}

template <typename T>
std::size_t bytes(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

auto child_of(auto& children, Token first) {
  using Child = typename std::remove_reference_t<decltype(children)>::value_type;
  return std::ranges::lower_bound(children, first, {}, &Child::first);
}

}  // namespace

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  // memcmp is vectorised; the loop only has to look inside the first stretch that differs.
  constexpr std::size_t kStretch = 64;
  const std::size_t size = std::min(a.size(), b.size());
  std::size_t at = 0;
  while (at + kStretch <= size && std::memcmp(&a[at], &b[at], kStretch * sizeof(Token)) == 0) {
    at += kStretch;
  }
  while (at < size && a[at] == b[at]) ++at;
  return at;
}

RadixTree::RadixTree(BlockPool& pool, std::int64_t block_size) : pool_(pool) {
  if (block_size < 1) {
    throw std::invalid_argument("block_size must be positive, not " + std::to_string(block_size));
  }
  block_size_ = static_cast<std::size_t>(block_size);
}

RadixTree::~RadixTree() {
  for (const Node& node : nodes_) {
    for (BlockId block : node.blocks) pool_.tree_release(block);
  }
}

// --- Looking up ---------------------------------------------------------------------------------

Match RadixTree::match(std::span<const Token> tokens, std::size_t limit, Namespace space,
                       bool stateful) {
  const Path path = find(tokens, limit, space, stateful);
  Match match{path.matched, table(path)};
  pool_.retain(match.blocks);
  touch(path, /*reuse=*/true);
  if (!path.nodes.empty()) {
    Node& last = nodes_[path.nodes.back()];
    if (last.snapshot != 0 && last.end() == path.matched) {
      match.snapshot = last.snapshot;
      last.snapshot_use = clock_;
    }
  }
  return match;
}

std::size_t RadixTree::peek(std::span<const Token> tokens, std::size_t limit, Namespace space,
                            bool stateful) const {
  return find(tokens, limit, space, stateful).matched;
}

RadixTree::Path RadixTree::find(std::span<const Token> tokens, std::size_t limit, Namespace space,
                                bool stateful) const {
  Path path = walk(tokens.first(std::min(limit, tokens.size())), space);
  if (!stateful) return path;
  const auto is_resumable = [&](NodeId id) {
    return nodes_[id].snapshot != 0 && nodes_[id].end() <= path.matched;
  };
  while (!path.nodes.empty() && !is_resumable(path.nodes.back())) path.nodes.pop_back();
  path.matched = path.nodes.empty() ? 0 : nodes_[path.nodes.back()].end();
  return path;
}

RadixTree::Path RadixTree::walk(std::span<const Token> tokens, Namespace space) const {
  Path path;
  const auto root = roots_.find(space);
  if (root == roots_.end()) return path;
  const Node* node = &nodes_[root->second];
  while (path.matched < tokens.size()) {
    const auto child = child_of(node->children, tokens[path.matched]);
    if (child == node->children.end() || child->first != tokens[path.matched]) break;
    node = &nodes_[child->node];
    path.nodes.push_back(child->node);
    path.matched += common_prefix(node->tokens, tokens.subspan(path.matched));
    if (path.matched < node->end()) break;
  }
  return path;
}

// The blocks of a prefix. Deeper nodes come later and overwrite.
std::vector<BlockId> RadixTree::table(const Path& path) const {
  std::vector<BlockId> blocks(blocks_for(path.matched));
  for (NodeId id : path.nodes) {
    const Node& node = nodes_[id];
    const std::size_t first = node.start / block_size_;
    const std::size_t count = std::min(node.blocks.size(), blocks.size() - first);
    std::copy_n(node.blocks.begin(), count, blocks.begin() + first);
  }
  return blocks;
}

void RadixTree::touch(const Path& path, bool reuse) {
  ++clock_;
  for (NodeId id : path.nodes) {
    Node& node = nodes_[id];
    delist(id);
    node.last_use = clock_;
    if (reuse) node.reused = std::max(node.reused, std::min(node.end(), path.matched));
    enlist(id);
  }
}

// --- Publishing ---------------------------------------------------------------------------------

std::vector<BlockId> RadixTree::insert(std::span<const Token> tokens,
                                       std::span<const BlockId> blocks, Namespace space) {
  if (blocks.size() != blocks_for(tokens.size())) {
    throw std::invalid_argument(std::to_string(tokens.size()) + " tokens lie in " +
                                std::to_string(blocks_for(tokens.size())) + " blocks, not " +
                                std::to_string(blocks.size()));
  }
  for (BlockId block : blocks) {
    if (pool_.row_references(block) == 0) {
      throw std::invalid_argument("block " + std::to_string(block) +
                                  " cannot be published: no row holds it");
    }
  }
  std::vector<BlockId> row(blocks.begin(), blocks.end());
  if (tokens.empty()) return row;

  Path path = walk(tokens, space);
  // Equal prefixes are stored once. An index that the path covers in part keeps the row's block,
  // which holds more.
  const std::vector<BlockId> cached = table(path);
  std::vector<BlockId> dropped;
  std::vector<BlockId> adopted;
  for (std::size_t index = 0; index < path.matched / block_size_; ++index) {
    if (row[index] == cached[index]) continue;
    dropped.push_back(std::exchange(row[index], cached[index]));
    adopted.push_back(cached[index]);
  }
  pool_.release(dropped);
  pool_.retain(adopted);
  NodeId at = path.nodes.empty() ? root(space) : path.nodes.back();
  const bool diverges = path.matched < tokens.size() && path.matched < nodes_[at].end();
  if (diverges) path.nodes.back() = at = split(at, path.matched);
  touch(path, /*reuse=*/false);
  if (path.matched == tokens.size()) return row;

  const auto tail = tokens.subspan(path.matched);
  const auto tail_blocks = std::span<const BlockId>(row).subspan(path.matched / block_size_);
  if (is_leaf(nodes_[at]) && nodes_[at].snapshot == 0) {
    extend(at, tail, tail_blocks);
    return row;
  }
  share_tail(at, path.matched / block_size_, tail_blocks.front());
  const NodeId leaf = add_node(at, path.matched);
  auto& children = nodes_[at].children;
  delist(at);
  children.insert(child_of(children, tail.front()), {tail.front(), leaf});
  append(nodes_[leaf], tail, tail_blocks);
  enlist(leaf);
  return row;
}

// Grows a leaf in place. Its last block, if partly filled, gives way to the row's: same tokens and
// more.
void RadixTree::extend(NodeId id, std::span<const Token> tokens, std::span<const BlockId> blocks) {
  Node& node = nodes_[id];
  delist(id);
  if (node.end() % block_size_ != 0) {
    const BlockId copy = blocks.front();
    blocks = blocks.subspan(1);
    if (const BlockId old = node.blocks.back(); old != copy) {
      pool_.tree_retain(copy);
      node.blocks.back() = copy;
      pool_.tree_release(old);
      share_tail(node.parent, node.end() / block_size_, copy);
    }
  }
  append(node, tokens, blocks);
  enlist(id);
}

void RadixTree::append(Node& node, std::span<const Token> tokens, std::span<const BlockId> blocks) {
  append_tightly(node.tokens, tokens);
  append_tightly(node.blocks, blocks);
  tokens_ += tokens.size();
  for (BlockId block : blocks) pool_.tree_retain(block);
}

// A node that ends inside block `index` needs no block of its own there while one below holds the
// same tokens and more. Lists `copy` instead if the old one then leaves the tree; returns how many
// blocks that freed.
std::size_t RadixTree::share_tail(NodeId id, std::size_t index, BlockId copy) {
  // After splits the nodes above may end in the same block and list the same one.
  std::vector<NodeId> holders;
  for (; nodes_[id].parent != kNone; id = nodes_[id].parent) {
    const Node& node = nodes_[id];
    if (node.end() % block_size_ == 0 || node.end() / block_size_ != index) break;
    if (node.blocks.back() != nodes_[holders.empty() ? id : holders[0]].blocks.back()) break;
    holders.push_back(id);
  }
  if (holders.empty()) return 0;
  const BlockId old = nodes_[holders[0]].blocks.back();
  if (old == copy || holders.size() != pool_.tree_references(old)) return 0;
  std::size_t freed = 0;
  for (NodeId holder : holders) {
    pool_.tree_retain(copy);
    nodes_[holder].blocks.back() = copy;
    freed += pool_.tree_release(old);
  }
  return freed;
}

// Cuts a node in two at `position`; the upper part is new. Both list a block that the cut falls
// into.
RadixTree::NodeId RadixTree::split(NodeId id, std::size_t position) {
  const NodeId upper_id = add_node(nodes_[id].parent, nodes_[id].start);
  Node& upper = nodes_[upper_id];
  Node& lower = nodes_[id];
  delist(id);

  const auto cut = lower.tokens.begin() + (position - lower.start);
  const std::size_t first = lower.start / block_size_;
  const auto upper_end = lower.blocks.begin() + (blocks_for(position) - first);
  const auto lower_begin = lower.blocks.begin() + (position / block_size_ - first);
  if (upper_end != lower_begin) pool_.tree_retain(*lower_begin);

  upper.tokens.assign(lower.tokens.begin(), cut);
  upper.blocks.assign(lower.blocks.begin(), upper_end);
  upper.children.push_back({*cut, id});
  upper.reused = std::min(lower.reused, position);
  upper.last_use = lower.last_use;
  child_of(nodes_[upper.parent].children, upper.tokens.front())->node = upper_id;

  lower.tokens.erase(lower.tokens.begin(), cut);
  lower.blocks.erase(lower.blocks.begin(), lower_begin);
  shrink(lower.tokens);
  shrink(lower.blocks);
  lower.start = position;
  lower.reused = std::max(lower.reused, position);
  lower.parent = upper_id;
  enlist(id);
  return upper_id;
}

// --- Snapshots ----------------------------------------------------------------------------------

Snapshot RadixTree::attach_snapshot(std::span<const Token> tokens, Snapshot snapshot,
                                    Namespace space) {
  if (snapshot <= 0) throw std::invalid_argument("a snapshot handle must be positive");
  if (tokens.empty()) throw std::invalid_argument("a snapshot needs at least one token");
  if (snapshots_.contains(snapshot)) {
    throw std::invalid_argument("snapshot " + std::to_string(snapshot) + " is already attached");
  }
  const Path path = walk(tokens, space);
  if (path.matched < tokens.size()) return -1;
  NodeId id = path.nodes.back();
  if (path.matched < nodes_[id].end()) id = split(id, path.matched);

  Node& node = nodes_[id];
  const Snapshot replaced = std::exchange(node.snapshot, snapshot);
  node.snapshot_use = ++clock_;
  snapshots_.erase(replaced);
  snapshots_.emplace(snapshot, id);
  return replaced;
}

bool RadixTree::drop_snapshot(Snapshot snapshot) {
  const auto entry = snapshots_.find(snapshot);
  if (entry == snapshots_.end()) return false;
  nodes_[entry->second].snapshot = 0;
  snapshots_.erase(entry);
  return true;
}

void RadixTree::drop_snapshot(Node& node, Eviction& eviction) {
  if (node.snapshot == 0) return;
  eviction.snapshots.push_back(node.snapshot);
  drop_snapshot(node.snapshot);
}

std::vector<Snapshot> RadixTree::snapshots() const {
  std::vector<std::pair<Tick, Snapshot>> by_use;
  by_use.reserve(snapshots_.size());
  for (const auto& [snapshot, id] : snapshots_) {
    by_use.emplace_back(nodes_[id].snapshot_use, snapshot);
  }
  std::ranges::sort(by_use);
  std::vector<Snapshot> handles(by_use.size());
  std::ranges::transform(by_use, handles.begin(), &std::pair<Tick, Snapshot>::second);
  return handles;
}

// --- Evicting -----------------------------------------------------------------------------------

Eviction RadixTree::evict(std::size_t wanted) {
  Eviction eviction;
  for (auto it = leaves_.begin(); it != leaves_.end() && eviction.blocks < wanted;) {
    const auto [victim, id] = *it;
    // What was reused stays until its own turn, in the protected segment.
    const std::size_t keep = victim.first ? 0 : reused_blocks(nodes_[id]);
    trim(id, keep, wanted, eviction);
    // Whatever the trim exposed or promoted ranks no lower than the victim. The victim itself still
    // standing at its rank means that a row uses it.
    it = leaves_.lower_bound(victim);
    if (it != leaves_.end() && it->second == id && it->first == victim) ++it;
  }
  return eviction;
}

Eviction RadixTree::clear(std::optional<Namespace> space) {
  const auto begin = space ? roots_.lower_bound(*space) : roots_.begin();
  const auto end = space ? roots_.upper_bound(*space) : roots_.end();
  Eviction eviction;
  for (auto root = begin; root != end;) {
    std::vector<NodeId> subtree{root->second};  // parents before children
    for (std::size_t at = 0; at < subtree.size(); ++at) {
      for (const Child& child : nodes_[subtree[at]].children) subtree.push_back(child.node);
    }
    for (std::size_t at = subtree.size(); --at > 0;) {
      if (is_leaf(nodes_[subtree[at]])) {
        trim(subtree[at], 0, std::numeric_limits<std::size_t>::max(), eviction);
      }
    }
    if (nodes_[root->second].children.empty()) {
      nodes_[root->second] = Node{};
      vacant_.push_back(root->second);
      root = roots_.erase(root);
    } else {
      ++root;
    }
  }
  return eviction;
}

// Takes idle blocks off a leaf's end until `keep` are left, `wanted` are freed in all, or a row
// uses the next. A node without blocks goes.
void RadixTree::trim(NodeId id, std::size_t keep, std::size_t wanted, Eviction& eviction) {
  Node& node = nodes_[id];
  const Token first = node.tokens.front();
  delist(id);
  while (node.blocks.size() > keep && eviction.blocks < wanted) {
    const BlockId block = node.blocks.back();
    if (pool_.row_references(block) > 0) break;
    drop_snapshot(node, eviction);
    const std::size_t cut = std::max(node.start, (node.end() - 1) / block_size_ * block_size_);
    tokens_ -= node.end() - cut;
    node.tokens.resize(cut - node.start);
    node.reused = std::min(node.reused, cut);
    node.blocks.pop_back();
    eviction.blocks += pool_.tree_release(block);
  }
  if (node.blocks.empty()) {
    remove_leaf(id, first, eviction);
    return;
  }
  shrink(node.tokens);
  shrink(node.blocks);
  enlist(id);
}

void RadixTree::remove_leaf(NodeId id, Token first, Eviction& eviction) {
  const NodeId parent_id = nodes_[id].parent;
  Node& parent = nodes_[parent_id];
  parent.children.erase(child_of(parent.children, first));
  nodes_[id] = Node{};
  vacant_.push_back(id);
  if (parent.children.empty()) {
    enlist(parent_id);
  } else {
    // The parent may have kept its last block for this child's sake only.
    const Node& sibling = nodes_[parent.children.front().node];
    eviction.blocks += share_tail(parent_id, sibling.start / block_size_, sibling.blocks.front());
  }
}

// --- Nodes and ranks ----------------------------------------------------------------------------

RadixTree::NodeId RadixTree::root(Namespace space) {
  const auto known = roots_.find(space);
  if (known != roots_.end()) return known->second;
  const NodeId id = add_node(kNone, 0);
  roots_.emplace(space, id);
  return id;
}

// A fresh node that its parent does not list yet.
RadixTree::NodeId RadixTree::add_node(NodeId parent, std::size_t start) {
  NodeId id;
  if (vacant_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = vacant_.back();
    vacant_.pop_back();
  }
  Node& node = nodes_[id];
  node.parent = parent;
  node.start = start;
  node.reused = start;
  node.last_use = clock_;
  return id;
}

std::size_t RadixTree::reused_blocks(const Node& node) const {
  if (node.reused <= node.start) return 0;
  return blocks_for(node.reused) - node.start / block_size_;
}

RadixTree::Rank RadixTree::rank(const Node& node) const {
  return {reused_blocks(node) == node.blocks.size(), node.last_use};
}

// Leaves are listed by rank: delist before anything that changes a node's rank or gives it its
// first child, enlist after.
void RadixTree::enlist(NodeId id) {
  if (is_leaf(nodes_[id])) leaves_.emplace(rank(nodes_[id]), id);
}

void RadixTree::delist(NodeId id) {
  if (is_leaf(nodes_[id])) leaves_.erase(rank(nodes_[id]));
}

std::size_t RadixTree::nbytes() const {
  // What a node of the standard containers costs beside its value.
  constexpr std::size_t kMapNode = 4 * sizeof(void*);
  constexpr std::size_t kHashNode = 2 * sizeof(void*);
  std::size_t sum = sizeof(*this) + nodes_.size() * sizeof(Node) + bytes(vacant_);
  for (const Node& node : nodes_) {
    sum += bytes(node.tokens) + bytes(node.blocks) + bytes(node.children);
  }
  sum += leaves_.size() * (sizeof(Rank) + sizeof(NodeId) + kMapNode);
  sum += roots_.size() * (sizeof(Namespace) + sizeof(NodeId) + kMapNode);
  sum += snapshots_.size() * (sizeof(Snapshot) + sizeof(NodeId) + kHashNode);
  return sum;
}

}  // namespace pomona::core
