// Float lanes of the widest vector the translation unit is compiled for.
//
// The same kernel source is compiled once per instruction set (see csrc/ops/CMakeLists.txt), so
// everything here has internal linkage: an inline function with external linkage could be merged
// across variants by the linker and run AVX-512 code on a machine without it. For the same reason
// this header uses no function of the standard library.

#pragma once

#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {
namespace {

#define INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileVectors = 4;  // 6 x 4 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileVectors = 2;  // 6 x 2 of 16
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kTileVectors = 4;
#else
constexpr int kLanes = 4;
constexpr int kTileVectors = 2;
#endif
constexpr int kTileRows = 6;

typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntLanes __attribute__((vector_size(kLanes * 4)));
typedef uint32_t WordLanes __attribute__((vector_size(kLanes * 4)));
typedef uint16_t ShortLanes __attribute__((vector_size(kLanes * 2)));

// Storage types of the slab. Only their bits matter here.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

// Calls body with a value of the C++ type that stands for `type`.
template <typename Body>
INLINE auto with_type(Float type, const Body& body) {
  switch (type) {
    case Float::kBfloat16:
      return body(Bfloat{});
    case Float::kFloat16:
      return body(Half{});
    default:
      return body(float{});
  }
}

template <typename To, typename From>
inline To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline Lanes broadcast(float x) { return x - Lanes{}; }  // x - 0 keeps the sign of zero

inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline Lanes select(IntLanes mask, Lanes yes, Lanes no) {
  return bits_of<Lanes>((bits_of<IntLanes>(yes) & mask) | (bits_of<IntLanes>(no) & ~mask));
}

// a > b ? a : b, so NaN in `b` is passed on.
inline Lanes max(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return select(a > b, a, b);
#endif
}

inline IntLanes lane_index() {
  IntLanes index;
  for (int i = 0; i < kLanes; i++) index[i] = i;
  return index;
}

inline Lanes load(const float* from) {
  Lanes x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}

inline void store(float* to, Lanes x) { __builtin_memcpy(to, &x, sizeof(x)); }

inline ShortLanes load_shorts(const void* from) {
  ShortLanes x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}

inline Lanes load(const Bfloat* from) {
#if defined(__AVX512F__)  // GCC widens halves of the vector
  const __m512i words = _mm512_cvtepu16_epi32(bits_of<__m256i>(load_shorts(from)));
  return bits_of<Lanes>(_mm512_slli_epi32(words, 16));
#else
  return bits_of<Lanes>(__builtin_convertvector(load_shorts(from), WordLanes) << 16);
#endif
}

inline void store(Bfloat* to, Lanes x) {
  const WordLanes bits = bits_of<WordLanes>(x);
  const WordLanes rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest even
  const WordLanes nan = (bits >> 16) | 0x40;
  const WordLanes is_nan = bits_of<WordLanes>(x != x);
  const ShortLanes out = __builtin_convertvector((nan & is_nan) | (rounded & ~is_nan), ShortLanes);
  __builtin_memcpy(to, &out, sizeof(out));
}

inline Lanes load(const Half* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  // Exponent and mantissa move into place; the multiplication rebases the exponent and makes
  // subnormal halves right. Infinity and NaN get the remaining exponent bits.
  const WordLanes half = __builtin_convertvector(load_shorts(from), WordLanes);
  const WordLanes magnitude = (half & 0x7fff) << 13;
  const Lanes scaled = bits_of<Lanes>(magnitude) * broadcast(0x1p112f);
  const WordLanes special = bits_of<WordLanes>(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
  return bits_of<Lanes>(bits_of<WordLanes>(scaled) | special | ((half & 0x8000) << 16));
#endif
}

inline void store(Half* to, Lanes x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)));
#else
  for (int i = 0; i < kLanes; i++) {
    const uint32_t bits = bits_of<uint32_t>(static_cast<float>(x[i]));
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
      half = 0x7e00;
    } else if (magnitude >= 0x477ff000) {  // rounds to 65536 or more
      half = 0x7c00;
    } else if (magnitude < 0x38800000) {  // subnormal: let the float adder round at 2^-24
      half = bits_of<uint32_t>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000;
    } else {
      half = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    }
    to[i].bits = static_cast<uint16_t>(sign | half);
  }
#endif
}

// Fewer than kLanes values; the other lanes are zero.
template <typename T>
inline Lanes load_part(const T* from, int64_t count) {
#if defined(__AVX512F__)
  const uint32_t mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
  } else {
    const __m256i shorts = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), from);
    return load(reinterpret_cast<const T*>(&shorts));
  }
#else
  T values[kLanes] = {};
  __builtin_memcpy(values, from, count * sizeof(T));
  return load(values);
#endif
}

template <typename T>
inline void store_part(T* to, Lanes x, int64_t count) {
  T values[kLanes];
  store(values, x);
  __builtin_memcpy(to, values, count * sizeof(T));
}

// Lane i + Step comes to lane i.
template <int Step, int... I>
inline Lanes move_down(Lanes x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, x, ((I + Step) % kLanes)...);
}

// Halves are folded onto each other: a fixed order.
template <int Half = kLanes / 2>
inline float sum(Lanes x) {
  x += move_down<Half>(x, std::make_integer_sequence<int, kLanes>{});
  if constexpr (Half > 1) return sum<Half / 2>(x);
  return x[0];
}

template <int Half = kLanes / 2>
inline float max(Lanes x) {
  x = max(x, move_down<Half>(x, std::make_integer_sequence<int, kLanes>{}));
  if constexpr (Half > 1) return max<Half / 2>(x);
  return x[0];
}

// 2^x for x <= 0, exact at 0; below 2^-126 it stays there.
inline Lanes exp2(Lanes x) {
  x = max(broadcast(-126.0f), x);
  // Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits.
  const Lanes shifted = x + broadcast(0x1.8p23f);
  const Lanes f = x - (shifted - broadcast(0x1.8p23f));
  const IntLanes exponent = (bits_of<IntLanes>(shifted) - bits_of<int32_t>(0x1.8p23f) + 127) << 23;
  Lanes p = broadcast(0.00015370704932138324f);
  p = fma(p, f, broadcast(0.0013399848248809576f));
  p = fma(p, f, broadcast(0.009618373587727547f));
  p = fma(p, f, broadcast(0.05550329014658928f));
  p = fma(p, f, broadcast(0.24022647738456726f));
  p = fma(p, f, broadcast(0.6931471824645996f));
  p = fma(p, f, broadcast(1.0f));
  return p * bits_of<Lanes>(exponent);
}

// Pairs of width W from the low (Part 0) or high (Part 1) half of each quad, of a and b in turn.
template <int W, int Part, int... I>
inline Lanes zip_quads(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b,
                                 (I / 4 * 4 + 2 * Part + (W == 1 ? I % 4 / 2 : I % 2) +
                                  (W == 1 ? I % 2 : I % 4 / 2) * kLanes)...);
}

// Every second quad, of a and then of b.
template <int Part, int... I>
inline Lanes unzip_quads(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 4 * 8 + 4 * Part + I % 4)...);
}

// Transposes a square of lanes: first within squares of four, then those squares. Processors
// shuffle within quads of lanes, and whole quads, at less cost than across them. Inlined by force:
// the square would go through memory.
__attribute__((always_inline)) inline void transpose(Lanes (&x)[kLanes]) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>{};
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const Lanes a = zip_quads<1, 0>(x[i], x[i + 1], lanes);
    const Lanes b = zip_quads<1, 1>(x[i], x[i + 1], lanes);
    const Lanes c = zip_quads<1, 0>(x[i + 2], x[i + 3], lanes);
    const Lanes d = zip_quads<1, 1>(x[i + 2], x[i + 3], lanes);
    x[i] = zip_quads<2, 0>(a, c, lanes);
    x[i + 1] = zip_quads<2, 1>(a, c, lanes);
    x[i + 2] = zip_quads<2, 0>(b, d, lanes);
    x[i + 3] = zip_quads<2, 1>(b, d, lanes);
  }
  if constexpr (kLanes > 4) {
#pragma GCC unroll 2
    for (int round = 4; round < kLanes; round *= 2) {
      Lanes y[kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes / 2; i++) {
        const Lanes a = x[i / 4 * 8 + i % 4], b = x[i / 4 * 8 + 4 + i % 4];
        y[i] = unzip_quads<0>(a, b, lanes);
        y[kLanes / 2 + i] = unzip_quads<1>(a, b, lanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) x[i] = y[i];
    }
  }
}

}  // namespace
}  // namespace pomona::kernels
