// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.

#include "kernels/cpu/choose_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

constexpr float kLowest = -__builtin_inff();
constexpr int64_t kSpan = 1024;  // that a peak is looked for in again, to find its place

// Logits [at, at + kLanes), with the lowest value beyond `count`.
template <typename T>
Lanes load_logits(const T* logits, int64_t at, int64_t count) {
  if (at + kLanes <= count) return load(logits + at);
  if (at >= count) return broadcast(kLowest);
  const IntLanes outside = lane_index() >= static_cast<int32_t>(count - at);
  return select(outside, broadcast(kLowest), load_part(logits + at, count - at));
}

template <typename T>
Peak find_peak(const T* logits, int64_t count) {
  Lanes nans = {};
  float best = kLowest;
  int64_t span = 0;
  for (int64_t begin = 0; begin < count; begin += kSpan) {
    const int64_t end = begin + kSpan < count ? begin + kSpan : count;
    Lanes highest = broadcast(kLowest);
    for (int64_t i = begin; i < end; i += kLanes) {
      const Lanes x = load_logits(logits, i, count);
      nans = select(x != x, x, nans);
      highest = max(x, highest);
    }
    if (const float top = max(highest); top > best) {
      best = top;
      span = begin;
    }
  }
  if (const float any = sum(nans); any != any) return {any, 0};
  int64_t index = span;
  while (load_part(logits + index, 1)[0] != best) index++;
  return {best, index};
}

template <typename T>
void weigh(const T* logits, int64_t count, float peak, float scale, float* weights, float* sums) {
  for (int64_t begin = 0; begin < count; begin += kDrawBlock) {
    Lanes total = {};
    for (int64_t i = begin; i < begin + kDrawBlock; i += kLanes) {
      const Lanes x = (load_logits(logits, i, count) - broadcast(peak)) * broadcast(scale);
      // Also false for NaN, which an infinite temperature makes of a masked logit.
      const Lanes w = select(x >= broadcast(-126.0f), exp2(x), Lanes{});
      store(weights + i, w);
      total += w;
    }
    *sums++ = sum(total);
  }
}

void trim(float* weights, int64_t blocks, float least, float* sums) {
  for (int64_t b = 0; b < blocks; b++, weights += kDrawBlock) {
    Lanes total = {};
    for (int64_t i = 0; i < kDrawBlock; i += kLanes) {
      const Lanes x = load(weights + i);
      const Lanes kept = select(x >= broadcast(least), x, Lanes{});
      store(weights + i, kept);
      total += kept;
    }
    sums[b] = sum(total);
  }
}

}  // namespace

namespace POMONA_VARIANT {

ChooseKernels choose_kernels() {
  return {
      .find_peak =
          [](const void* logits, Float type, int64_t count) {
            return with_type(type, [&]<typename T>(T) {
              const T* x = static_cast<const T*>(logits);
              return find_peak(x, count);
            });
          },
      .weigh =
          [](const void* logits, Float type, int64_t count, float peak, float scale, float* weights,
             float* sums) {
            with_type(type, [&]<typename T>(T) {
              const T* x = static_cast<const T*>(logits);
              weigh(x, count, peak, scale, weights, sums);
            });
          },
      .trim = trim,
  };
}

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
