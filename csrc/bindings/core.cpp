// pomona._core: see python/pomona/_core.pyi for the contract. No logic lives here.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/block_pool.h"
#include "core/radix_tree.h"
#include "core/step_planner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::core {
namespace {

using Array = nb::ndarray<nb::ro>;
using Ints = std::span<const std::int32_t>;

// Below this many tokens or blocks a call ends sooner than another thread could use the GIL.
constexpr std::size_t kLong = 4096;

// A pool and its trees share state, and long calls let go of the GIL: one lock for all of them.
struct Pool {
  explicit Pool(std::int64_t blocks) : core(blocks) {}
  BlockPool core;
  std::mutex mutex;
};

struct Tree {
  Tree(Pool& pool, std::int64_t block_size) : core(pool.core, block_size), mutex(pool.mutex) {}
  RadixTree core;
  std::mutex& mutex;  // the pool's; nanobind keeps the pool alive
};

// Runs `work` on the owner's core under its lock. The lock's holder never waits for the GIL.
template <typename Owner, typename Work>
auto locked(Owner& owner, std::size_t size, Work&& work) {
  std::optional<nb::gil_scoped_release> without_gil;
  if (size >= kLong) without_gil.emplace();
  const std::scoped_lock lock(owner.mutex);
  return work(owner.core);
}

template <typename Owner, auto Getter>
auto property(Owner& owner) {
  return locked(owner, 0, [](const auto& core) { return (core.*Getter)(); });
}

// The buffer of a C-contiguous int32 vector, without a copy. Anything else is the caller's mistake:
// a silent conversion of a long prompt at every step would be a slow one.
Ints ints(const Array& array, const char* name) {
  const auto fail = [name](const std::string& what) {
    throw std::invalid_argument(std::string(name) + " must be a C-contiguous int32 vector, not " +
                                what);
  };
  if (array.dtype() != nb::dtype<std::int32_t>()) fail("of another dtype");
  if (array.ndim() != 1) fail("of " + std::to_string(array.ndim()) + " dimensions");
  if (array.shape(0) > 1 && array.stride(0) != 1) fail("strided");
  return {static_cast<const std::int32_t*>(array.data()), array.shape(0)};
}

std::size_t size(std::int64_t value, const char* name) {
  if (value < 0) throw std::invalid_argument(std::string(name) + " must not be negative");
  return static_cast<std::size_t>(value);
}

// A NumPy array that owns `values`.
template <typename T, typename... Shape>
nb::object numpy(std::vector<T> values, Shape... shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  auto* data = reinterpret_cast<std::int32_t*>(owned->data());
  const nb::capsule owner(owned.get(),
                          [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, std::int32_t>(data, {shape...}, owner));
}

nb::object numpy(std::vector<std::int32_t> values) {
  const std::size_t size = values.size();
  return numpy(std::move(values), size);
}

nb::object numpy(std::vector<BlockCopy> copies) {
  static_assert(sizeof(BlockCopy) == 2 * sizeof(std::int32_t));
  const std::size_t size = copies.size();
  return numpy(std::move(copies), size, std::size_t{2});
}

struct PyMatch {
  std::size_t tokens;
  nb::object blocks;
  Snapshot snapshot;
};

struct PyPlan {
  nb::object tokens;
  nb::object blocks;
  std::int64_t shortage;
};

void bind_pool(nb::module_& m) {
  nb::exception<OutOfBlocksError>(m, "OutOfBlocksError", PyExc_RuntimeError);

  nb::class_<Pool>(m, "BlockPool")
      .def(nb::init<std::int64_t>(), "blocks"_a)
      .def_prop_ro("capacity", &property<Pool, &BlockPool::capacity>)
      .def_prop_ro("free", &property<Pool, &BlockPool::free>)
      .def_prop_ro("idle", &property<Pool, &BlockPool::idle>)
      .def_prop_ro("in_use", &property<Pool, &BlockPool::in_use>)
      .def_prop_ro("quarantined", &property<Pool, &BlockPool::quarantined>)
      .def_prop_ro("available", &property<Pool, &BlockPool::available>)
      .def_prop_ro("high_water", &property<Pool, &BlockPool::high_water>)
      .def(
          "allocate",
          [](Pool& self, std::int64_t count, std::int64_t after) {
            return numpy(locked(self, 0, [&](auto& pool) { return pool.allocate(count, after); }));
          },
          "count"_a, "after"_a = -1)
      .def(
          "retain",
          [](Pool& self, const Array& blocks) {
            locked(self, 0, [&](auto& pool) { pool.retain(ints(blocks, "blocks")); });
          },
          "blocks"_a)
      .def(
          "release",
          [](Pool& self, const Array& blocks) {
            locked(self, 0, [&](auto& pool) { pool.release(ints(blocks, "blocks")); });
          },
          "blocks"_a)
      .def(
          "copy_on_write",
          [](Pool& self, std::int64_t block, std::int64_t after) {
            return locked(self, 0, [&](auto& pool) { return pool.copy_on_write(block, after); });
          },
          "block"_a, "after"_a = -1)
      .def("begin_step",
           [](Pool& self) { return locked(self, 0, [](auto& pool) { return pool.begin_step(); }); })
      .def(
          "take_copies",
          [](Pool& self, StepNumber step, const Array& writes) {
            const Ints into = ints(writes, "writes");
            return numpy(locked(self, 0, [&](auto& pool) { return pool.take_copies(step, into); }));
          },
          "step"_a, "writes"_a)
      .def(
          "complete_step",
          [](Pool& self, StepNumber step) {
            locked(self, 0, [&](auto& pool) { pool.complete_step(step); });
          },
          "step"_a)
      .def(
          "row_references",
          [](Pool& self, std::int64_t block) {
            return locked(self, 0, [&](auto& pool) { return pool.row_references(block); });
          },
          "block"_a)
      .def(
          "tree_references",
          [](Pool& self, std::int64_t block) {
            return locked(self, 0, [&](auto& pool) { return pool.tree_references(block); });
          },
          "block"_a);
}

void bind_tree(nb::module_& m) {
  nb::class_<PyMatch>(m, "Match")
      .def_ro("tokens", &PyMatch::tokens)
      .def_ro("blocks", &PyMatch::blocks)
      .def_ro("snapshot", &PyMatch::snapshot);

  nb::class_<Eviction>(m, "Eviction")
      .def_ro("blocks", &Eviction::blocks)
      .def_ro("snapshots", &Eviction::snapshots);

  nb::class_<Tree>(m, "RadixTree")
      .def(nb::init<Pool&, std::int64_t>(), "pool"_a, "block_size"_a, nb::keep_alive<1, 2>())
      .def(
          "match",
          [](Tree& self, const Array& array, std::int64_t limit, Namespace space, bool stateful) {
            const Ints tokens = ints(array, "tokens");
            const std::size_t most = size(limit, "limit");
            Match match = locked(self, tokens.size(), [&](auto& tree) {
              return tree.match(tokens, most, space, stateful);
            });
            return PyMatch{match.tokens, numpy(std::move(match.blocks)), match.snapshot};
          },
          "tokens"_a, "limit"_a, "namespace"_a = 0, "stateful"_a = false)
      .def(
          "peek",
          [](Tree& self, const Array& array, std::int64_t limit, Namespace space, bool stateful) {
            const Ints tokens = ints(array, "tokens");
            const std::size_t most = size(limit, "limit");
            return locked(self, tokens.size(),
                          [&](auto& tree) { return tree.peek(tokens, most, space, stateful); });
          },
          "tokens"_a, "limit"_a, "namespace"_a = 0, "stateful"_a = false)
      .def(
          "insert",
          [](Tree& self, const Array& array, const Array& block_array, Namespace space) {
            const Ints tokens = ints(array, "tokens");
            const Ints blocks = ints(block_array, "blocks");
            return numpy(locked(self, tokens.size(),
                                [&](auto& tree) { return tree.insert(tokens, blocks, space); }));
          },
          "tokens"_a, "blocks"_a, "namespace"_a = 0)
      .def(
          "attach_snapshot",
          [](Tree& self, const Array& array, Snapshot snapshot, Namespace space) {
            const Ints tokens = ints(array, "tokens");
            return locked(self, tokens.size(), [&](auto& tree) {
              return tree.attach_snapshot(tokens, snapshot, space);
            });
          },
          "tokens"_a, "snapshot"_a, "namespace"_a = 0)
      .def(
          "drop_snapshot",
          [](Tree& self, Snapshot snapshot) {
            return locked(self, 0, [&](auto& tree) { return tree.drop_snapshot(snapshot); });
          },
          "snapshot"_a)
      .def("snapshots", &property<Tree, &RadixTree::snapshots>)
      .def(
          "evict",
          [](Tree& self, std::int64_t count) {
            const std::size_t blocks = size(count, "blocks");
            return locked(self, blocks, [&](auto& tree) { return tree.evict(blocks); });
          },
          "blocks"_a)
      .def(
          "clear",
          [](Tree& self, std::optional<Namespace> space) {
            return locked(self, kLong, [&](auto& tree) { return tree.clear(space); });
          },
          "namespace"_a = nb::none())
      .def_prop_ro("nodes", &property<Tree, &RadixTree::nodes>)
      .def_prop_ro("tokens", &property<Tree, &RadixTree::tokens>)
      .def_prop_ro("nbytes", &property<Tree, &RadixTree::nbytes>);

  m.def(
      "common_prefix",
      [](const Array& a, const Array& b) { return common_prefix(ints(a, "a"), ints(b, "b")); },
      "a"_a, "b"_a);
}

void bind_planner(nb::module_& m) {
  nb::class_<PyPlan>(m, "Plan")
      .def_ro("tokens", &PyPlan::tokens)
      .def_ro("blocks", &PyPlan::blocks)
      .def_ro("shortage", &PyPlan::shortage);

  const StepPlanner::Options defaults;
  nb::class_<StepPlanner>(m, "StepPlanner")
      .def(
          "__init__",
          [](StepPlanner* self, std::int64_t block_size, double budget_s, std::int64_t min_chunk,
             std::int64_t max_step_tokens, std::int64_t reserve_tokens) {
            new (self) StepPlanner({.block_size = block_size,
                                    .budget_s = budget_s,
                                    .min_chunk = min_chunk,
                                    .max_step_tokens = max_step_tokens,
                                    .reserve_tokens = reserve_tokens});
          },
          "block_size"_a, "budget_s"_a = defaults.budget_s, "min_chunk"_a = defaults.min_chunk,
          "max_step_tokens"_a = defaults.max_step_tokens,
          "reserve_tokens"_a = defaults.reserve_tokens)
      .def_prop_ro("prefill_budget", &StepPlanner::prefill_budget)
      .def_prop_ro("prefill_rate", &StepPlanner::prefill_rate)
      .def("observe", &StepPlanner::observe, "prefill_tokens"_a, "decode_rows"_a, "seconds"_a)
      .def("reservation", &StepPlanner::reservation, "prompt_tokens"_a, "max_tokens"_a)
      .def(
          "admits",
          [](const StepPlanner& self, std::int64_t need, const Array& held, const Array& reserved,
             std::int64_t available) {
            return self.admits(need, ints(held, "held"), ints(reserved, "reserved"), available);
          },
          "need"_a, "held"_a, "reserved"_a, "available"_a)
      .def(
          "plan",
          [](const StepPlanner& self, const Array& pending, const Array& length, const Array& held,
             const Array& reserved, std::int64_t available) {
            Plan plan = self.plan(ints(pending, "pending"), ints(length, "length"),
                                  ints(held, "held"), ints(reserved, "reserved"), available);
            return PyPlan{numpy(std::move(plan.tokens)), numpy(std::move(plan.blocks)),
                          plan.shortage};
          },
          "pending"_a, "length"_a, "held"_a, "reserved"_a, "available"_a);
}

}  // namespace
}  // namespace pomona::core

NB_MODULE(_core, m) {
  pomona::core::bind_pool(m);
  pomona::core::bind_tree(m);
  pomona::core::bind_planner(m);
}
