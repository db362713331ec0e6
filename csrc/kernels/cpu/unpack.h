// Weights of several matrix rows as lanes of float32, depth after depth.
//
// Lanes are rows: a vector holds the weights of kLanes rows at one depth. Every row is a stream of
// 32-bit words, each with the values of one or more depths, and so are its scales and biases: a few
// neighbouring words of kLanes rows are transposed in registers, then their values are taken out
// one by one. As lanes.h, all of this has internal linkage.

#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/weights.h"

namespace pomona::kernels {
namespace {

// ------------------------------------------------------------------ what a word holds

// Each has kCodes, the values of a word, and value(word, i), its i-th.

struct Float32 {
  static constexpr int kCodes = 1;
  static INLINE Lanes value(WordLanes word, int) { return bits_of<Lanes>(word); }
};

struct Bfloat16 {
  static constexpr int kCodes = 2;
  static INLINE Lanes value(WordLanes word, int i) {
    return bits_of<Lanes>(i == 0 ? word << 16 : word & 0xffff0000u);
  }
};

struct Float16 {
  static constexpr int kCodes = 2;
  static INLINE Lanes value(WordLanes word, int i) {
    const ShortLanes shorts = __builtin_convertvector(word >> (16 * i) & 0xffff, ShortLanes);
    return load(reinterpret_cast<const Half*>(&shorts));
  }
};

#if defined(__AVX512F__)
INLINE Lanes look_up(WordLanes index, const float (&table)[16]) {
  return _mm512_permutexvar_ps(bits_of<__m512i>(index), _mm512_loadu_ps(table));
}
#endif

template <int Bits>
struct Unsigned {
  static constexpr int kCodes = 32 / Bits;
  static INLINE Lanes value(WordLanes word, int i) {
    const WordLanes shifted = word >> (Bits * i);
#if defined(__AVX512F__)
    if constexpr (Bits == 4) {
      static constexpr float kTable[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      return look_up(shifted, kTable);
    }
#endif
    return __builtin_convertvector(bits_of<IntLanes>(shifted & ((1u << Bits) - 1)), Lanes);
  }
};

// FP4 E2M1.
constexpr float kFp4[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

struct Fp4 {
  static constexpr int kCodes = 8;
  static INLINE Lanes value(WordLanes word, int i) {
    const WordLanes shifted = word >> (4 * i);
#if defined(__AVX512F__)
    return look_up(shifted, kFp4);
#else
    // Twice the value is the code's last bit beside its leading one, moved by the exponent.
    const WordLanes magnitude = shifted & 7, exponent = magnitude >> 1;
    const WordLanes normal = bits_of<WordLanes>(exponent != 0);
    const WordLanes doubled =
        (magnitude & 1 & ~normal) | (((2 | (magnitude & 1)) << ((exponent - 1) & 3)) & normal);
    const Lanes half = broadcast(0.5f) * __builtin_convertvector(bits_of<IntLanes>(doubled), Lanes);
    return bits_of<Lanes>(bits_of<WordLanes>(half) | ((shifted & 8) << 28));
#endif
  }
};

// FP8 E4M3: its exponent and mantissa in the fields of a float that is 2^120 too small.
struct E4m3 {
  static constexpr int kCodes = 4;
  static INLINE Lanes value(WordLanes word, int i) {
    const WordLanes code = word >> (8 * i);
    const Lanes magnitude = bits_of<Lanes>((code & 0x7f) << 20) * broadcast(0x1p120f);
    return bits_of<Lanes>(bits_of<WordLanes>(magnitude) | ((code & 0x80) << 24));
  }
};

// The exponent of a power of two; 0 is the subnormal 2^-127.
struct E8m0 {
  static constexpr int kCodes = 4;
  static INLINE Lanes value(WordLanes word, int i) {
    const WordLanes code = word >> (8 * i) & 0xff, zero = bits_of<WordLanes>(code == 0);
    return bits_of<Lanes>((code << 23 & ~zero) | ((1u << 22) & zero));
  }
};

// How a matrix is stored: Value of its codes, and Scale of its groups (void: none).
template <typename ValueType, typename ScaleType = void, bool HasBias = false>
struct Format {
  using Value = ValueType;
  using Scale = ScaleType;
  static constexpr bool kGrouped = !__is_same(ScaleType, void), kBiased = HasBias;
};

// Calls body(Format{}) and returns true; false where only `decode_values` knows the matrix.
template <typename Body>
INLINE bool with_format(const Weights& w, const Body& body) {
  const auto by_type = [&](const auto& typed) {
    switch (w.type) {
      case Float::kFloat32:
        return typed(Float32{});
      case Float::kBfloat16:
        return typed(Bfloat16{});
      case Float::kFloat16:
        return typed(Float16{});
    }
    return false;
  };
  switch (w.code) {
    case Code::kDense:
      return by_type([&]<typename T>(T) { return body(Format<T>{}), true; });
    case Code::kAffine:
      return by_type([&]<typename T>(T) {
        if (w.bits == 4) return body(Format<Unsigned<4>, T, true>{}), true;
        if (w.bits == 8) return body(Format<Unsigned<8>, T, true>{}), true;
        return false;
      });
    case Code::kMxfp4:
      return body(Format<Fp4, E8m0>{}), true;
    case Code::kMxfp8:
      return body(Format<E4m3, E8m0>{}), true;
    case Code::kNvfp4:
      return body(Format<Fp4, E4m3>{}), true;
  }
  return false;
}

// ------------------------------------------------------------------ words of many rows

// Words that are transposed together. Wide vectors hold two rows of them.
constexpr int kWords = kLanes < 8 ? kLanes : 8;
constexpr int kWordBytes = kWords * 4;

// kLanes rows of a matrix from `first` on; past the last row it is repeated.
struct RowGroup {
  const Weights* w;
  const char *words[kLanes], *scales[kLanes], *biases[kLanes];
  // The rows that come next, as one piece of memory.
  const char *next_words, *next_scales, *next_biases;

  RowGroup() = default;
  RowGroup(const Weights& weights, int64_t first, int64_t ahead) : w(&weights) {
    const int64_t row_size = row_bytes(weights), group_size = group_bytes(weights);
    const auto at = [](const void* base, int64_t offset) {
      return static_cast<const char*>(base) + offset;
    };
    for (int i = 0; i < kLanes; i++) {
      const int64_t row = first + i < weights.rows ? first + i : weights.rows - 1;
      words[i] = at(weights.data, row * row_size);
      scales[i] = at(weights.scales, row * group_size);
      biases[i] = at(weights.biases, row * group_size);
    }
    next_words = words[0] + ahead * row_size;
    next_scales = scales[0] + ahead * group_size;
    next_biases = biases[0] + ahead * group_size;
  }

  // Bytes of one row's scales, and of its biases.
  static int64_t group_bytes(const Weights& weights) {
    if (weights.code == Code::kDense) return 0;
    const int64_t item = weights.code == Code::kAffine ? size_of(weights.type) : 1;
    return weights.depth / weights.group_size * item;
  }
};

// `bytes` bytes of each row from `at` on; in wide vectors the second row is the fourth after
// `first`.
INLINE Lanes load_rows(const char* const (&rows)[kLanes], int first, int64_t at, int64_t bytes) {
#if defined(__AVX512F__)
  const __mmask32 mask =
      bytes >= kWordBytes ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << bytes) - 1);
  const auto half = [&](int row) {
    return _mm256_castsi256_ps(_mm256_maskz_loadu_epi8(mask, rows[row] + at));
  };
  return _mm512_insertf32x8(_mm512_castps256_ps512(half(first)), half(first + 4), 1);
#else
  static_assert(kLanes == kWords);
  Lanes x = {};
  if (bytes >= kWordBytes) {
    __builtin_memcpy(&x, rows[first] + at, kWordBytes);
  } else {
    __builtin_memcpy(&x, rows[first] + at, bytes);
  }
  return x;
#endif
}

// out[i] = word i of every row, of the kWords that begin `at` bytes into the rows. Only `bytes` of
// them exist; what lies behind is not read.
INLINE void load_words(const char* const (&rows)[kLanes], int64_t at, int64_t bytes,
                       WordLanes (&out)[kWords]) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>{};
  constexpr int kRowsPerVector = kLanes / kWords;
  Lanes x[kWords];
#pragma GCC unroll 8
  for (int i = 0; i < kWords; i++) {
    x[i] = load_rows(rows, i / 4 * 4 * kRowsPerVector + i % 4, at, bytes);
  }
#pragma GCC unroll 2
  for (int i = 0; i < kWords; i += 4) {
    const Lanes a = zip_quads<1, 0>(x[i], x[i + 1], lanes),
                b = zip_quads<1, 1>(x[i], x[i + 1], lanes),
                c = zip_quads<1, 0>(x[i + 2], x[i + 3], lanes),
                d = zip_quads<1, 1>(x[i + 2], x[i + 3], lanes);
    x[i] = zip_quads<2, 0>(a, c, lanes);
    x[i + 1] = zip_quads<2, 1>(a, c, lanes);
    x[i + 2] = zip_quads<2, 0>(b, d, lanes);
    x[i + 3] = zip_quads<2, 1>(b, d, lanes);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    if constexpr (kWords == 4) {
      out[i] = bits_of<WordLanes>(x[i]);
    } else {
      out[i] = bits_of<WordLanes>(unzip_quads<0>(x[i], x[i + 4], lanes));
      out[i + 4] = bits_of<WordLanes>(unzip_quads<1>(x[i], x[i + 4], lanes));
    }
  }
}

// ------------------------------------------------------------------ unpacking

constexpr int64_t kMaxDepth = 256;  // of one call of `unpack`
constexpr int64_t kMaxGroups = kMaxDepth / 16;

// table[g] = values of groups [first, first + count) of each row.
template <typename Scale>
INLINE void load_groups(const char* const (&rows)[kLanes], int64_t first, int64_t count,
                        Lanes* table) {
  constexpr int64_t kBytes = 4 / Scale::kCodes;
  for (int64_t g = 0; g < count; g += kWords * Scale::kCodes) {
    WordLanes words[kWords];
    load_words(rows, (first + g) * kBytes, (count - g) * kBytes, words);
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i++) {
#pragma GCC unroll 4
      for (int code = 0; code < Scale::kCodes; code++) {
        table[g + i * Scale::kCodes + code] = Scale::value(words[i], code);
      }
    }
  }
}

// Scales and biases of kLanes rows; a load may fill kWords words beyond the last group.
template <typename Format>
struct GroupTable {
  Lanes scale[kMaxGroups + 4 * kWords], bias[kMaxGroups + 4 * kWords];

  INLINE void load(const RowGroup& rows, int64_t first, int64_t count) {
    load_groups<typename Format::Scale>(rows.scales, first, count, scale);
    if constexpr (Format::kBiased) {
      load_groups<typename Format::Scale>(rows.biases, first, count, bias);
    }
  }
};

struct NoTable {};

template <bool Grouped, typename F>
struct TableOf {
  using Type = NoTable;
};
template <typename F>
struct TableOf<true, F> {
  using Type = GroupTable<F>;
};

// Calls body(k, weights of V row groups) for the depths [begin, end), in order; at most kMaxDepth,
// from a multiple of it on.
//
// The rows that come next are asked for evenly meanwhile: more requests at a time than the core can
// have open would make it wait.
template <typename F, int V, typename Body>
INLINE void unpack(const RowGroup (&rows)[V], int64_t begin, int64_t end, const Body& body) {
  using Value = typename F::Value;
  constexpr int kCodes = Value::kCodes;
  typename TableOf<F::kGrouped, F>::Type tables[V];
  int shift = 0;
  if constexpr (F::kGrouped) {
    shift = __builtin_ctzll(rows[0].w->group_size);
    for (int v = 0; v < V; v++) tables[v].load(rows[v], begin >> shift, (end - begin) >> shift);
  }
  const int64_t row_end = row_bytes(*rows[0].w);
  for (int64_t start = begin; start < end; start += kWords * kCodes) {
    const int64_t at = start / kCodes * 4;
    WordLanes words[V][kWords];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) load_words(rows[v].words, at, row_end - at, words[v]);
    for (int64_t i = 0; i < kWords && start + i * kCodes < end; i++) {
      const int64_t k = start + i * kCodes;
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        __builtin_prefetch(rows[v].next_words + (at + i * 4) * kLanes);
      }
      Lanes scale[V], bias[V];
      if constexpr (F::kGrouped) {
        const int64_t g = (k - begin) >> shift;
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          scale[v] = tables[v].scale[g];
          if constexpr (F::kBiased) bias[v] = tables[v].bias[g];
        }
        if (k == begin + (g << shift)) {
          constexpr int64_t kBytes = kLanes * 4 / F::Scale::kCodes;
          const int64_t group = (k >> shift) * kBytes;
#pragma GCC unroll 8
          for (int v = 0; v < V; v++) {
            __builtin_prefetch(rows[v].next_scales + group);
            if constexpr (F::kBiased) __builtin_prefetch(rows[v].next_biases + group);
          }
        }
      }
#pragma GCC unroll 16
      for (int code = 0; code < kCodes; code++) {
        if (kCodes == 2 && code == 1 && k + 1 == end) break;  // an odd depth
        Lanes weights[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          weights[v] = Value::value(words[v][i], code);
          if constexpr (F::kBiased) {
            weights[v] = fma(weights[v], scale[v], bias[v]);
          } else if constexpr (F::kGrouped) {
            weights[v] *= scale[v];
          }
        }
        body(k + code, weights);
      }
    }
  }
}

// ------------------------------------------------------------------ one value at a time

// Codes follow each other from the lowest bit of the first byte on, across bytes.
INLINE uint32_t code_at(const uint8_t* row, int64_t index, int bits) {
  const int64_t bit = index * bits;
  const int within = static_cast<int>(bit & 7);
  uint32_t value = row[bit >> 3];
  if (within + bits > 8) value |= static_cast<uint32_t>(row[(bit >> 3) + 1]) << 8;
  return value >> within & ((1u << bits) - 1);
}

INLINE float dense_value(Float type, const void* values, int64_t at) {
  return with_type(
      type, [&]<typename T>(T) { return load_part(static_cast<const T*>(values) + at, 1)[0]; });
}

INLINE float byte_value(Code code, const void* values, int64_t at) {
  const WordLanes byte = WordLanes{} + static_cast<const uint8_t*>(values)[at];
  return (code == Code::kNvfp4 ? E4m3::value(byte, 0) : E8m0::value(byte, 0))[0];
}

INLINE float code_value(const Weights& w, uint32_t code) {
  if (w.code == Code::kAffine) return static_cast<float>(code);
  return w.bits == 4 ? kFp4[code] : E4m3::value(WordLanes{} + code, 0)[0];
}

// Values [begin, end) of a row as float32; every format, slowly.
void decode_values(const Weights& w, int64_t row, int64_t begin, int64_t end, float* out) {
  if (w.code == Code::kDense) {
    for (int64_t k = begin; k < end; k++) *out++ = dense_value(w.type, w.data, row * w.depth + k);
    return;
  }
  const uint8_t* codes = static_cast<const uint8_t*>(w.data) + row * row_bytes(w);
  const bool affine = w.code == Code::kAffine;
  for (int64_t k = begin; k < end;) {
    const int64_t group = k / w.group_size, next = (group + 1) * w.group_size;
    const int64_t at = row * (w.depth / w.group_size) + group;
    const Lanes scale =
        broadcast(affine ? dense_value(w.type, w.scales, at) : byte_value(w.code, w.scales, at));
    const Lanes bias = broadcast(affine ? dense_value(w.type, w.biases, at) : -0.0f);
    for (; k < end && k < next; k++) {
      *out++ = fma(broadcast(code_value(w, code_at(codes, k, w.bits))), scale, bias)[0];
    }
  }
}

}  // namespace
}  // namespace pomona::kernels
