#include "kernels/cpu/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/choose_tile.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

constexpr double kLog2E = 1.44269504088896340736;

// A thread's buffers, reused.
struct Scratch {
  std::vector<float> weights;     // of a row's tokens: 1 for the likeliest
  std::vector<float> sums;        // of each kDrawBlock of them
  std::vector<float> candidates;  // in find_cut

  std::span<const float> block(int64_t i) const {
    return std::span(weights).subspan(i * kDrawBlock, kDrawBlock);
  }
  double total() const { return std::accumulate(sums.begin(), sums.end(), 0.0); }
};

struct Mass {
  double count = 0, weight = 0;

  void operator+=(const Mass& other) {
    count += other.count;
    weight += other.weight;
  }
};

struct Cut {
  float value;
  Mass above;  // of the weights that are larger than `value`
};

// Moves what `keep` holds for to the front of `to` and returns it. Without branches, because
// nothing foretells the outcome.
template <typename Keep>
std::span<float> compact(std::span<const float> from, float* to, Keep keep) {
  size_t count = 0;
  for (const float w : from) {
    to[count] = w;
    count += keep(w);
  }
  return {to, count};
}

// Goes down the weights from the largest and stops at the value at which `measure` of those passed
// reaches the target, or at the last one that is at least `floor`. Radix selection, ten bits at a
// time: positive floats are ordered as their bits are, and those of 1 end below bit 30.
Cut find_cut(Scratch& scratch, float floor, double Mass::* measure, double target) {
  scratch.candidates.resize(scratch.weights.size());
  float* buffer = scratch.candidates.data();
  std::span<const float> candidates =
      compact(scratch.weights, buffer, [&](float w) { return w >= floor; });
  constexpr uint32_t kKeys = 1 << 10;
  Mass above;
  for (const int shift : {20, 10, 0}) {
    const auto key = [&](float w) { return (std::bit_cast<uint32_t>(w) >> shift) & (kKeys - 1); };
    Mass masses[kKeys];
    for (const float w : candidates) masses[key(w)] += {1, w};
    uint32_t chosen = kKeys;
    for (uint32_t k = kKeys; k-- > 0;) {
      if (masses[k].count == 0) continue;
      if (chosen < kKeys) above += masses[chosen];
      chosen = k;
      if (above.*measure + masses[k].*measure >= target) break;
    }
    candidates = compact(candidates, buffer, [&](float w) { return key(w) == chosen; });
  }
  return {candidates.front(), above};
}

// What the k-th largest weight surely reaches: the largest of a block is not below its mean.
float floor_of_top_k(const Scratch& scratch, int64_t k) {
  if (k > static_cast<int64_t>(scratch.sums.size())) return std::numeric_limits<float>::min();
  std::vector<float> sums = scratch.sums;
  std::ranges::nth_element(sums, sums.begin() + (k - 1), std::greater{});
  return std::max(sums[k - 1] / kDrawBlock * 0.999f,
                  std::numeric_limits<float>::min());  // sums are rounded
}

// The smallest weight that min_p, top_k and top_p keep; 0 when they keep all.
float least_kept(Scratch& scratch, const DrawRule& rule, int64_t vocab) {
  float least = rule.min_p;
  double total = 0;
  if (rule.top_k > 0 && rule.top_k < vocab) {
    const auto k = static_cast<double>(rule.top_k);
    const Cut cut = find_cut(scratch, floor_of_top_k(scratch, rule.top_k), &Mass::count, k);
    total = cut.above.weight + (k - cut.above.count) * cut.value;
    least = std::max(least, cut.value);
  }
  if (rule.top_p < 1) {
    if (total == 0) total = scratch.total();
    // What is less likely than (1 - top_p) / vocab weighs less than 1 - top_p together.
    const auto floor = static_cast<float>((1.0 - rule.top_p) * total / static_cast<double>(vocab));
    const Cut cut = find_cut(scratch, std::max({floor, least, std::numeric_limits<float>::min()}),
                             &Mass::weight, rule.top_p * total);
    least = std::max(least, cut.value);
  }
  return least;
}

// The first place at which the running sum exceeds u of the total; its weight is not zero.
int64_t inverse(std::span<const float> weights, double u) {
  const double limit = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  size_t i = 0;
  while (i + 1 < weights.size() && (sum += weights[i]) <= limit) i++;
  return static_cast<int64_t>(i);
}

struct Uniforms {
  double block, within;
};

// Two numbers in [0, 1) for one draw, of 24 bits each: splitmix64 over seed and index (Steele, Lea
// and Flood, 2014).
Uniforms uniforms(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return {static_cast<double>(z >> 40) * 0x1p-24,
          static_cast<double>(z >> 16 & 0xFFFFFF) * 0x1p-24};
}

int32_t choose_token(const void* logits, Float type, int64_t vocab, const DrawRule& rule,
                     uint64_t index) {
  const ChooseKernels& kernel = kernels().choose;
  const Peak peak = kernel.find_peak(logits, type, vocab);
  if (!std::isfinite(peak.value)) return kNoToken;
  if (rule.greedy()) return static_cast<int32_t>(peak.index);

  thread_local Scratch scratch;
  const int64_t blocks = (vocab + kDrawBlock - 1) / kDrawBlock;
  scratch.weights.resize(blocks * kDrawBlock);
  scratch.sums.resize(blocks);
  const auto scale = static_cast<float>(kLog2E / rule.temperature);
  kernel.weigh(logits, type, vocab, peak.value, scale, scratch.weights.data(), scratch.sums.data());
  const float least = least_kept(scratch, rule, vocab);
  if (least > 0) kernel.trim(scratch.weights.data(), blocks, least, scratch.sums.data());

  const Uniforms u = uniforms(rule.seed, index);
  const int64_t block = inverse(scratch.sums, u.block);
  return static_cast<int32_t>(block * kDrawBlock + inverse(scratch.block(block), u.within));
}

}  // namespace

void choose(const Logits& logits, std::span<const DrawRule> rules,
            std::span<const uint64_t> indices, int32_t* tokens) {
  const int64_t row_bytes = logits.vocab * size_of(logits.type);
  const auto choose_some = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const void* row = static_cast<const char*>(logits.data) + r * row_bytes;
      tokens[r] = choose_token(row, logits.type, logits.vocab, rules[r], indices[r]);
    }
  };
  share(logits.rows * logits.vocab, logits.rows, 1, choose_some);
}

}  // namespace pomona::kernels
