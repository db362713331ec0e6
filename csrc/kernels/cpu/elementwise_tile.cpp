// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.

#include "kernels/cpu/elementwise_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

// Calls body(i, count of lanes) for whole vectors, then for what is left.
template <typename Body>
INLINE void for_lanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, int64_t{kLanes});
  if (i < count) body(i, count - i);
}

template <typename T>
INLINE Lanes load_some(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, count);
}

template <typename T>
INLINE void store_some(T* to, Lanes x, int64_t count) {
  count >= kLanes ? store(to, x) : store_part(to, x, count);
}

// ------------------------------------------------------------------ functions

constexpr float kLog2E = 1.44269504088896340736f;

// ln 2 in two parts; multiples of the first are exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -0.00021219444170128554f;

INLINE Lanes power_of_two(IntLanes exponent) { return bits_of<Lanes>((exponent + 127) << 23); }

// e^x within 2 units of the last place; infinite or zero where that is right. NaN is passed on.
INLINE Lanes exp(Lanes x) {
  x = select(x > broadcast(89.0f), broadcast(89.0f), x);
  x = select(x < broadcast(-105.0f), broadcast(-105.0f), x);
  // Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits.
  const Lanes shifted = fma(x, broadcast(kLog2E), broadcast(0x1.8p23f));
  const Lanes n = shifted - broadcast(0x1.8p23f);
  Lanes f = fma(n, broadcast(-kLn2High), x);
  f = fma(n, broadcast(-kLn2Low), f);
  Lanes p = broadcast(0.0013950489228591323f);
  p = fma(p, f, broadcast(0.008368889801204205f));
  p = fma(p, f, broadcast(0.04166620597243309f));
  p = fma(p, f, broadcast(0.166665181517601f));
  p = fma(p, f, broadcast(0.5f));
  p = fma(p * f, f, f) + broadcast(1.0f);
  // Two factors, because 2^128 and 2^-150 are no floats.
  const IntLanes exponent = bits_of<IntLanes>(shifted) - bits_of<int32_t>(0x1.8p23f);
  const IntLanes half = exponent >> 1;
  return p * power_of_two(half) * power_of_two(exponent - half);
}

INLINE Lanes sigmoid(Lanes x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(-x)); }

// x times the normal distribution's share below it. The share above |x| is exp(-x^2 / 2) times a
// smooth function, fitted in (|x| - 3) / (|x| + 3).
INLINE Lanes gelu(Lanes x) {
  const IntLanes negative = x < Lanes{};
  const Lanes size = select(negative, -x, x);
  const Lanes t = (size - broadcast(3.0f)) / (size + broadcast(3.0f));
  Lanes p = broadcast(5.367137782741338e-05f);
  p = fma(p, t, broadcast(0.00011554326192708686f));
  p = fma(p, t, broadcast(-0.0003394844534341246f));
  p = fma(p, t, broadcast(-0.000983758014626801f));
  p = fma(p, t, broadcast(0.002904555993154645f));
  p = fma(p, t, broadcast(0.006132070440798998f));
  p = fma(p, t, broadcast(-0.046213291585445404f));
  p = fma(p, t, broadcast(0.12322503328323364f));
  p = fma(p, t, broadcast(-0.20640261471271515f));
  p = fma(p, t, broadcast(0.12151394784450531f));
  const Lanes tail = x * (p * exp(broadcast(-0.5f) * x * x));
  return select(negative, tail, x - tail);
}

INLINE Lanes gelu_tanh(Lanes x) {
  // (1 + tanh(u)) / 2 is the sigmoid of 2u.
  const Lanes cube = broadcast(0.044715f) * x * x * x;
  return x * sigmoid(broadcast(1.5957691216057308f) * (x + cube));
}

INLINE Lanes clip_above(Lanes x, float limit) {
  return select(x > broadcast(limit), broadcast(limit), x);
}
INLINE Lanes clip_below(Lanes x, float limit) {
  return select(x < broadcast(limit), broadcast(limit), x);
}

// The constants are those of gpt-oss.
INLINE Lanes swiglu_oai(Lanes gate, Lanes up) {
  gate = clip_above(gate, 7.0f);
  up = clip_below(clip_above(up, 7.0f), -7.0f);
  return (up + broadcast(1.0f)) * (gate * sigmoid(broadcast(1.702f) * gate));
}

// ------------------------------------------------------------------ rows

void rms_norm(Float type, const void* x, int64_t count, const float* weight, float eps,
              float* out) {
  with_type(type, [&]<typename T>(T) {
    const T* from = static_cast<const T*>(x);
    constexpr int kSums = 4;  // hide the latency of one
    Lanes sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; s++) {
        const Lanes value = load(from + i + s * kLanes);
        sums[s] = fma(value, value, sums[s]);
      }
    }
    for (int s = 0; i < count; s++, i += kLanes) {
      const Lanes value = load_some(from + i, count - i);
      sums[s] = fma(value, value, sums[s]);
    }
    const float mean = sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(count);
    const Lanes factor = broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for_lanes(count, [&](int64_t at, int64_t n) {
      Lanes value = load_some(from + at, n) * factor;
      if (weight != nullptr) value *= load_some(weight + at, n);
      store_some(out + at, value, n);
    });
  });
}

void turn(float* head, const float* angles, int64_t half, bool traditional, float scale) {
  const float *cosines = angles, *sines = angles + half;
  if (traditional) {
    for (int64_t i = 0; i < half; i++) {
      const float a = head[2 * i] * scale, b = head[2 * i + 1] * scale;
      head[2 * i] = a * cosines[i] - b * sines[i];
      head[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
    return;
  }
  const Lanes factor = broadcast(scale);
  for_lanes(half, [&](int64_t i, int64_t n) {
    const Lanes a = load_some(head + i, n) * factor, b = load_some(head + half + i, n) * factor;
    const Lanes c = load_some(cosines + i, n), s = load_some(sines + i, n);
    store_some(head + i, a * c - b * s, n);
    store_some(head + half + i, a * s + b * c, n);
  });
}

template <typename F>
INLINE void activate_by(const float* gate, const float* up, int64_t count, float* out,
                        const F& function) {
  for_lanes(count, [&](int64_t i, int64_t n) {
    Lanes value;
    if (gate != nullptr) {
      value = function(load_some(gate + i, n)) * load_some(up + i, n);
    } else {
      value = function(load_some(up + i, n));
    }
    store_some(out + i, value, n);
  });
}

void activate(Activation kind, const float* gate, const float* up, int64_t count, float* out) {
  switch (kind) {
    case Activation::kSilu:
      return activate_by(gate, up, count, out,
                         [](Lanes x) { return x / (broadcast(1.0f) + exp(-x)); });
    case Activation::kGelu:
      return activate_by(gate, up, count, out, gelu);
    case Activation::kGeluTanh:
      return activate_by(gate, up, count, out, gelu_tanh);
    case Activation::kRelu2:
      return activate_by(gate, up, count, out, [](Lanes x) {
        const Lanes positive = clip_below(x, 0.0f);
        return positive * positive;
      });
    case Activation::kSwigluOai:
      for_lanes(count, [&](int64_t i, int64_t n) {
        store_some(out + i, swiglu_oai(load_some(gate + i, n), load_some(up + i, n)), n);
      });
  }
}

template <typename Residual, typename Out>
void add_typed(const Addition& a) {
  const Lanes scale = broadcast(a.scale);
  for (int64_t r = 0; r < a.rows; r++) {
    const float* x = a.x + r * a.x_stride;
    const Residual* residual = static_cast<const Residual*>(a.residual) + r * a.residual_stride;
    Out* out = static_cast<Out*>(a.out) + r * a.out_stride;
    for_lanes(a.columns, [&](int64_t c, int64_t n) {
      Lanes value = load_some(x + c, n);
      if (a.bias != nullptr) value += load_some(a.bias + c, n);
      value *= scale;
      if (a.residual != nullptr) value += load_some(residual + c, n);
      store_some(out + c, value, n);
    });
  }
}

void add(const Addition& a) {
  with_type(a.out_type, [&]<typename Out>(Out) {
    with_type(a.residual_type, [&]<typename Residual>(Residual) { add_typed<Residual, Out>(a); });
  });
}

// ------------------------------------------------------------------ packing

// Rows [first, first + n) of a tile of `count`, n <= kLanes. Whole vectors are stored where the
// lanes past the tile's end are overwritten by the next depth, which is so if these are its last
// rows.
void pack_rows(const float* rows, int64_t stride, int64_t first, int64_t n, int64_t count,
               int64_t depth, float* packed) {
  const int64_t end = count * depth;
  const bool spill = first == 0;
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int64_t some = depth - k < kLanes ? depth - k : kLanes;
    Lanes square[kLanes];
    for (int64_t r = 0; r < kLanes; r++) {
      square[r] = r < n ? load_some(rows + (first + r) * stride + k, some) : Lanes{};
    }
    transpose(square);
    for (int64_t i = 0; i < some; i++) {
      const int64_t at = (k + i) * count + first;
      if (n == kLanes || (spill && at + kLanes <= end)) {
        store(packed + at, square[i]);
      } else {
        store_part(packed + at, square[i], n);
      }
    }
  }
}

void pack(const float* rows, int64_t stride, int64_t count, int64_t depth, float* packed) {
  if (count == 1) {
    for_lanes(depth,
              [&](int64_t k, int64_t n) { store_some(packed + k, load_some(rows + k, n), n); });
    return;
  }
  for (int64_t first = 0; first < count; first += kLanes) {
    const int64_t n = count - first < kLanes ? count - first : kLanes;
    pack_rows(rows, stride, first, n, count, depth, packed);
  }
}

// ------------------------------------------------------------------ router

void softmax(float* x, int64_t count) {
  Lanes highest = broadcast(-__builtin_inff());
  for_lanes(count, [&](int64_t i, int64_t n) {
    Lanes value = broadcast(-__builtin_inff());
    if (n == kLanes) {
      value = load(x + i);
    } else {
      for (int64_t j = 0; j < n; j++) value[j] = x[i + j];
    }
    highest = max(highest, value);
  });
  const Lanes peak = broadcast(max(highest));
  Lanes total = {};
  for_lanes(count, [&](int64_t i, int64_t n) {
    store_some(x + i, exp(load_some(x + i, n) - peak), n);
    total += load_some(x + i, n);
  });
  const Lanes share = broadcast(1.0f / sum(total));
  for_lanes(count,
            [&](int64_t i, int64_t n) { store_some(x + i, load_some(x + i, n) * share, n); });
}

void sigmoid_all(float* x, int64_t count) {
  for_lanes(count,
            [&](int64_t i, int64_t n) { store_some(x + i, sigmoid(load_some(x + i, n)), n); });
}

}  // namespace

namespace POMONA_VARIANT {

ElementwiseKernels elementwise_kernels() {
  return {rms_norm, turn, activate, add, pack, softmax, sigmoid_all};
}

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
