#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace pomona::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Idle workers look out for the next run this long, longer than the gaps of a step, before they
// sleep; waking one takes tens of microseconds.
constexpr auto kLookout = std::chrono::microseconds(400);

// From here on they offer their core to others between looks: the thread that prepares the next
// step may want it.
constexpr auto kPolite = std::chrono::microseconds(30);

constexpr int kPausesPerLook = 64;
constexpr int kPausesBeforeYield = 4000;

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;
constexpr int kRoundShift = 32;

uint64_t round_of(uint64_t gate) { return gate >> kRoundShift; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // "yield" returns at once
#endif
}

#if defined(__linux__)
// Empty where it cannot be found out. Of the calling thread: workers have other sets.
cpu_set_t usable_set() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  return set;
}

// What a container may use of the machine, in cores; `most` without a limit.
int cgroup_cores(int most) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us) || period_us <= 0) return most;  // "max": no limit
  return std::clamp(static_cast<int>(quota_us / period_us + 0.5), 1, most);
}
#endif

int usable_cores() {
  int cores = std::max(1u, std::thread::hardware_concurrency());
#if defined(__linux__)
  if (const cpu_set_t set = usable_set(); CPU_COUNT(&set) > 0) cores = CPU_COUNT(&set);
  cores = cgroup_cores(cores);
#endif
  return cores;
}

uint64_t pieces(uint64_t first, uint64_t end) { return end << 32 | first; }

// One piece of a part, or -1 when none is left.
int64_t take(std::atomic<uint64_t>& part, bool from_end) {
  uint64_t left = part.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t first = left & UINT32_MAX, end = left >> 32;
    if (first >= end) return -1;
    const uint64_t rest = from_end ? pieces(first, end - 1) : pieces(first + 1, end);
    // What a piece reads and writes is ordered by the gate.
    if (part.compare_exchange_weak(left, rest, std::memory_order_relaxed)) {
      return static_cast<int64_t>(from_end ? end - 1 : first);
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) : parts_(std::make_unique<Part[]>(threads)) {
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; i++) {
    workers_.emplace_back([this, i] { work(i); });
#if defined(__linux__)
    pthread_setname_np(workers_.back().native_handle(), "pomona kernels");
#endif
  }
}

ThreadPool& ThreadPool::shared() {
  static ThreadPool* pool = new ThreadPool(configured_threads());
  return *pool;
}

int ThreadPool::configured_threads() {
  const int cores = usable_cores();
  const char* wanted = std::getenv("POMONA_CPU_THREADS");
  if (wanted == nullptr || *wanted == '\0') return cores;
  const std::string_view text = wanted;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), threads);
  if (error != std::errc() || end != text.end() || threads < 1 || threads > cores) {
    throw std::runtime_error("POMONA_CPU_THREADS=" + std::string(text) +
                             " is not a number of threads from 1 to " + std::to_string(cores) +
                             ", the cores this process may use");
  }
  return threads;
}

void ThreadPool::run(int64_t count, int64_t grain, Body body) {
  if (workers_.empty() || count <= grain) {
    for (int64_t i = 0; i < count; i += grain) body(i, std::min(i + grain, count));
    return;
  }
  std::lock_guard turn(turn_);
  keep_off_this_core();
  body_ = &body;
  count_ = count;
  grain_ = grain;
  const uint64_t total = (count + grain - 1) / grain, threads = workers_.size() + 1;
  for (uint64_t i = 0, first = 0; i < threads; i++) {
    const uint64_t end = first + (total - first + threads - i - 1) / (threads - i);
    parts_[i].left.store(pieces(first, end), std::memory_order_relaxed);
    first = end;
  }
  // This store and the load of sleepers_ must not change places: a worker raises sleepers_, then
  // looks at the gate, so at least one of the two sees the other.
  gate_.store((round_of(gate_.load()) + 1) << kRoundShift | kOpen);
  if (sleepers_.load() > 0) {
    {
      std::lock_guard lock(sleep_);
    }  // nobody is between a look at the gate and falling asleep
    wake_.notify_all();
  }
  take_pieces(0);
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spins = 0; gate_.load(std::memory_order_acquire) & kInside; spins++) {
    spins < kPausesBeforeYield ? pause() : std::this_thread::yield();
  }
}

// Some kernels wake a thread on the core of the one that wakes it and need 10 ms to find out that
// another core is idle. The workers must not share the caller's.
void ThreadPool::keep_off_this_core() {
#if defined(__linux__)
  const int core = sched_getcpu();
  if (core == callers_core_) return;
  callers_core_ = core;
  cpu_set_t others = usable_set();
  if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  for (std::thread& worker : workers_) {
    pthread_setaffinity_np(worker.native_handle(), sizeof(others), &others);
  }
#endif
}

void ThreadPool::take_pieces(size_t self) const noexcept {
  const size_t threads = workers_.size() + 1;
  for (size_t i = 0; i < threads; i++) {
    Part& part = parts_[(self + i) % threads];
    for (int64_t piece; (piece = take(part.left, i > 0)) >= 0;) {
      (*body_)(piece* grain_, std::min((piece + 1) * grain_, count_));
    }
  }
}

void ThreadPool::work(size_t self) {
  uint64_t gate = 0;
  while (true) {
    gate = next_round(round_of(gate));
    while (gate & kOpen) {
      if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) continue;
      take_pieces(self);
      gate_.fetch_sub(1, std::memory_order_release);
      break;
    }
  }
}

// Waits for a round other than `seen` and returns the gate.
uint64_t ThreadPool::next_round(uint64_t seen) {
  uint64_t gate;
  const auto is_new = [&] {
    gate = gate_.load();
    return round_of(gate) != seen;
  };
  const Clock::time_point start = Clock::now();
  for (Clock::duration waited{}; waited < kLookout; waited = Clock::now() - start) {
    if (waited > kPolite) std::this_thread::yield();
    for (int spins = 0; spins < kPausesPerLook; spins++, pause()) {
      if (is_new()) return gate;
    }
  }
  std::unique_lock lock(sleep_);
  sleepers_++;
  wake_.wait(lock, is_new);
  sleepers_--;
  return gate;
}

}  // namespace pomona::kernels
