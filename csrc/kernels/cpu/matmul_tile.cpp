// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.
//
// Lanes are output columns: a square of weight words is transposed in registers, so that a vector
// holds one word of each of kLanes weight rows, and its codes become kLanes weights of one depth.
// Few rows of activations are multiplied as the weights are unpacked; for more, a panel of
// kSumBlock unpacked depths is shared by all. Either way an element is the same chain of additions.

#include "kernels/cpu/matmul_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

#define INLINE inline __attribute__((always_inline))

constexpr int kUnitVectors = kUnit / kLanes;

// Rows and vectors of the inner loop over a panel: as many sums as the registers hold.
#if defined(__AVX512F__)
constexpr int kPanelRows = 14, kPanelVectors = 2;
#elif defined(__AVX2__)
constexpr int kPanelRows = 6, kPanelVectors = 2;
#elif defined(__aarch64__)
constexpr int kPanelRows = 6, kPanelVectors = 4;
#else
constexpr int kPanelRows = 6, kPanelVectors = 2;
#endif
static_assert(kUnitVectors % kPanelVectors == 0);

// Up to this many rows the weights are used as they are unpacked: as many sums of two vectors as
// the registers hold beside them.
#if defined(__AVX512F__)
constexpr int kFewRows = 8;
#else
constexpr int kFewRows = 4;
#endif

// A single row needs more vectors side by side, to hide the latency of its sums.
constexpr int few_vectors(int rows) { return rows == 1 ? 4 : 2; }
static_assert(kUnitVectors % 2 == 0);

// kLanes rows of a matrix from `first` on; past the last row it is repeated.
struct RowGroup {
  const Weights* w;
  int64_t first;
  int last;  // greatest index within the group

  RowGroup() = default;
  RowGroup(const Weights& weights, int64_t first_row)
      : w(&weights), first(first_row < weights.rows ? first_row : weights.rows - 1) {
    const int64_t left = weights.rows - 1 - first;
    last = left < kLanes - 1 ? static_cast<int>(left) : kLanes - 1;
  }

  // Address of row i + 1 from that of row i.
  INLINE const char* next(const char* row, int i, int64_t stride) const {
    return i < last ? row + stride : row;
  }
};

// ------------------------------------------------------------------ formats
//
// A format says how a raw 32-bit lane becomes kCodes values of consecutive depths, and whether they
// are scaled by groups.

template <typename T>
struct Dense {
  static constexpr int kCodes = 1;
  static constexpr bool kGrouped = false, kBiased = false;
  using Raw = Lanes;
  static constexpr int64_t kRawBytes = sizeof(T);

  static INLINE Raw load_raw(const char* from, int64_t count) {
    return count >= kLanes ? load(reinterpret_cast<const T*>(from))
                           : load_part(reinterpret_cast<const T*>(from), count);
  }
  static INLINE Lanes value(Raw raw, int) { return raw; }
};

// Words of packed codes. Transposed as float lanes: only their bits are moved.
struct Packed {
  static constexpr bool kGrouped = true;
  using Raw = Lanes;
  static constexpr int64_t kRawBytes = 4;

  static INLINE Raw load_raw(const char* from, int64_t count) {
    return count >= kLanes ? load(reinterpret_cast<const float*>(from))
                           : load_part(reinterpret_cast<const float*>(from), count);
  }
};

#if defined(__AVX512F__)
INLINE Lanes look_up(WordLanes index, const float (&table)[16]) {
  return _mm512_permutexvar_ps(bits_of<__m512i>(index), _mm512_loadu_ps(table));
}
#endif

template <int Bits>
struct Affine : Packed {
  static constexpr int kCodes = 32 / Bits;
  static constexpr bool kBiased = true;

  static INLINE Lanes value(Raw raw, int code) {
    const WordLanes shifted = bits_of<WordLanes>(raw) >> (Bits * code);
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

struct Fp4 : Packed {
  static constexpr int kCodes = 8;
  static constexpr bool kBiased = false;

  static INLINE Lanes value(Raw raw, int code) {
    const WordLanes shifted = bits_of<WordLanes>(raw) >> (4 * code);
#if defined(__AVX512F__)
    return look_up(shifted, kFp4);
#else
    // Twice the value is the code's last bit beside its leading one, moved by the exponent.
    const WordLanes magnitude = shifted & 7, exponent = magnitude >> 1;
    const IntLanes normal = bits_of<IntLanes>(exponent != 0);
    const WordLanes doubled =
        (magnitude & 1 & ~bits_of<WordLanes>(normal)) |
        (((2 | (magnitude & 1)) << ((exponent - 1) & 3)) & bits_of<WordLanes>(normal));
    const Lanes half = broadcast(0.5f) * __builtin_convertvector(bits_of<IntLanes>(doubled), Lanes);
    return bits_of<Lanes>(bits_of<WordLanes>(half) | ((shifted & 8) << 28));
#endif
  }
};

// FP8 E4M3 in the exponent and mantissa fields of a float that is 2^120 too small.
INLINE Lanes decode_e4m3(WordLanes code) {
  const Lanes magnitude = bits_of<Lanes>((code & 0x7f) << 20) * broadcast(0x1p120f);
  return bits_of<Lanes>(bits_of<WordLanes>(magnitude) | ((code & 0x80) << 24));
}

struct Fp8 : Packed {
  static constexpr int kCodes = 4;
  static constexpr bool kBiased = false;

  static INLINE Lanes value(Raw raw, int code) {
    return decode_e4m3(bits_of<WordLanes>(raw) >> (8 * code) & 0xff);
  }
};

// ------------------------------------------------------------------ scales

constexpr int kMaxGroups = kSumBlock / 16;

// How scales and biases are stored: T is float, Bfloat, Half, or one of these.
struct E8m0 {
  uint8_t bits;
};
struct E4m3 {
  uint8_t bits;
};

INLINE WordLanes load_bytes(const uint8_t* from, int64_t count) {
  WordLanes bytes = {};
  for (int i = 0; i < count; i++) bytes[i] = from[i];
  return bytes;
}

template <typename T>
INLINE Lanes load_some(const char* from, int64_t count) {
  const T* p = reinterpret_cast<const T*>(from);
  return count >= kLanes ? load(p) : load_part(p, count);
}

// The exponent of a power of two; 0 is the subnormal 2^-127.
template <>
INLINE Lanes load_some<E8m0>(const char* from, int64_t count) {
  const WordLanes bytes =
      load_bytes(reinterpret_cast<const uint8_t*>(from), count < kLanes ? count : kLanes);
  const WordLanes zero = bits_of<WordLanes>(bytes == 0);
  return bits_of<Lanes>((bytes << 23 & ~zero) | ((1u << 22) & zero));
}

template <>
INLINE Lanes load_some<E4m3>(const char* from, int64_t count) {
  return decode_e4m3(
      load_bytes(reinterpret_cast<const uint8_t*>(from), count < kLanes ? count : kLanes));
}

// table[g] = values of group first + g for each row of the group, for `count` groups.
template <typename T>
INLINE void load_groups(const RowGroup& rows, const void* values, int64_t first, int64_t count,
                        Lanes* table) {
  const int64_t stride = rows.w->depth / rows.w->group_size * sizeof(T);
  const char* base = static_cast<const char*>(values) + rows.first * stride + first * sizeof(T);
  for (int64_t g = 0; g < count; g += kLanes, base += kLanes * sizeof(T)) {
    Lanes square[kLanes];
    const char* row = base;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) {
      square[i] = load_some<T>(row, count - g);
      row = rows.next(row, i, stride);
    }
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) table[g + i] = square[i];
  }
}

// Scales and biases of kLanes rows for the groups of one block.
struct GroupTable {
  Lanes scale[kMaxGroups + kLanes], bias[kMaxGroups + kLanes];
};

#if defined(__AVX512F__)

// At most half a vector of values; the others are zero.
template <typename T>
INLINE __m256 load_half(const char* from, int64_t count) {
  const __mmask8 mask = static_cast<__mmask8>((1u << count) - 1);
  if constexpr (sizeof(T) == 4) {
    return _mm256_maskz_loadu_ps(mask, from);
  } else {
    const __m128i shorts = _mm_maskz_loadu_epi16(mask, from);
    const bool bfloat = __is_same(T, Bfloat);
    return bfloat ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(shorts), 16))
                  : _mm256_cvtph_ps(shorts);
  }
}

// Scales and biases of up to kLanes / 2 groups in one square.
template <typename T>
INLINE void load_both(const RowGroup& rows, int64_t first, int64_t count, GroupTable& table) {
  const int64_t stride = rows.w->depth / rows.w->group_size * sizeof(T);
  const int64_t offset = rows.first * stride + first * sizeof(T);
  const char* scale = static_cast<const char*>(rows.w->scales) + offset;
  const char* bias = static_cast<const char*>(rows.w->biases) + offset;
  Lanes square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) {
    square[i] = _mm512_insertf32x8(_mm512_castps256_ps512(load_half<T>(scale, count)),
                                   load_half<T>(bias, count), 1);
    scale = rows.next(scale, i, stride);
    bias = rows.next(bias, i, stride);
  }
  transpose(square);
#pragma GCC unroll 8
  for (int g = 0; g < kLanes / 2; g++) {
    table.scale[g] = square[g];
    table.bias[g] = square[kLanes / 2 + g];
  }
}

#endif

template <bool Biased>
void load_groups(const RowGroup& rows, int64_t first, int64_t count, GroupTable& table) {
  const Weights& w = *rows.w;
  const auto fill = [&]<typename T>(T) {
#if defined(__AVX512F__)
    if constexpr (Biased) {
      if (count <= kLanes / 2) return load_both<T>(rows, first, count, table);
    }
#endif
    load_groups<T>(rows, w.scales, first, count, table.scale);
    if constexpr (Biased) load_groups<T>(rows, w.biases, first, count, table.bias);
  };
  if constexpr (!Biased) return w.code == Code::kNvfp4 ? fill(E4m3{}) : fill(E8m0{});
  switch (w.type) {
    case Float::kFloat32:
      return fill(float{});
    case Float::kBfloat16:
      return fill(Bfloat{});
    case Float::kFloat16:
      return fill(Half{});
  }
}

// ------------------------------------------------------------------ unpacking

// The memory of kLanes rows that are needed next, asked for evenly while others are worked on: more
// requests at a time than the core can have open would make it wait.
struct Upcoming {
  const char *words, *scales, *biases;
  int64_t group_bytes;  // of one group in all rows

  Upcoming() = default;
  Upcoming(const Weights& w, int64_t row)
      : words(static_cast<const char*>(w.data) + row * row_bytes(w)) {
    if (w.code == Code::kDense) return;
    group_bytes = kLanes * (w.code == Code::kAffine ? size_of(w.type) : 1);
    const int64_t offset = row * (w.depth / w.group_size) * group_bytes / kLanes;
    scales = static_cast<const char*>(w.scales) + offset;
    biases = static_cast<const char*>(w.biases) + offset;
  }

  INLINE void ask_word(int64_t index, int64_t word_bytes) const {
    __builtin_prefetch(words + index * kLanes * word_bytes);
  }

  INLINE void ask_group(int64_t index, bool biased) const {
    __builtin_prefetch(scales + index * group_bytes);
    if (biased) __builtin_prefetch(biases + index * group_bytes);
  }
};

// Calls body(k, weights of V row groups) for the depths [begin, end) of one block, in order. The
// rows `ahead` further on come next.
template <typename Format, int V, typename Body>
INLINE void unpack(const RowGroup (&rows)[V], int64_t begin, int64_t end, int64_t ahead,
                   const Body& body) {
  constexpr int64_t kDepth = int64_t{kLanes} * Format::kCodes;  // of a square
  GroupTable tables[Format::kGrouped ? V : 1];
  Upcoming upcoming[V];
  const int64_t group_size = Format::kGrouped ? rows[0].w->group_size : kDepth;
  for (int v = 0; v < V; v++) {
    upcoming[v] = Upcoming(*rows[v].w, rows[v].first + ahead);
    if constexpr (Format::kGrouped) {
      const int shift = __builtin_ctzll(group_size);
      load_groups<Format::kBiased>(rows[v], begin >> shift, (end - begin) >> shift, tables[v]);
    }
  }
  const int64_t first_group = begin / group_size;
  int64_t group = first_group, group_end = begin;
  Lanes scale[V], bias[V];
  for (int64_t start = begin; start < end; start += kDepth) {
    Lanes raw[V][kLanes];
    const int64_t words = (end - start < kDepth ? end - start : kDepth) / Format::kCodes;
    for (int v = 0; v < V; v++) {
      const Weights& w = *rows[v].w;
      const int64_t stride = row_bytes(w), at = start / Format::kCodes * Format::kRawBytes;
      const char* row = static_cast<const char*>(w.data) + rows[v].first * stride + at;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) {
        raw[v][i] = Format::load_raw(row, words);
        row = rows[v].next(row, i, stride);
      }
      transpose(raw[v]);
    }
    for (int64_t i = 0; i < words; i++) {
      const int64_t k = start + i * Format::kCodes;
      if (Format::kGrouped && k == group_end) {
        const int64_t g = group - first_group;
        for (int v = 0; v < V; v++) {
          scale[v] = tables[v].scale[g];
          if constexpr (Format::kGrouped && Format::kBiased) bias[v] = tables[v].bias[g];
          upcoming[v].ask_group(group, Format::kBiased);
        }
        group++;
        group_end += group_size;
      }
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) upcoming[v].ask_word(k / Format::kCodes, Format::kRawBytes);
#pragma GCC unroll 16
      for (int code = 0; code < Format::kCodes; code++) {
        Lanes weights[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          weights[v] = Format::value(raw[v][i], code);
          if constexpr (Format::kGrouped) {
            if constexpr (Format::kBiased) {
              weights[v] = fma(weights[v], scale[v], bias[v]);
            } else {
              weights[v] *= scale[v];
            }
          }
        }
        body(k + code, weights);
      }
    }
  }
}

// ------------------------------------------------------------------ one value at a time

template <typename T>
INLINE float scalar(const void* from, int64_t at) {
  return load_part(static_cast<const T*>(from) + at, 1)[0];
}

float scalar(Float type, const void* from, int64_t at) {
  switch (type) {
    case Float::kFloat32:
      return scalar<float>(from, at);
    case Float::kBfloat16:
      return scalar<Bfloat>(from, at);
    default:
      return scalar<Half>(from, at);
  }
}

// Codes follow each other from the lowest bit of the first byte on, across bytes.
uint32_t code_at(const uint8_t* row, int64_t index, int bits) {
  const int64_t bit = index * bits;
  const int within = static_cast<int>(bit & 7);
  uint32_t value = row[bit >> 3];
  if (within + bits > 8) value |= static_cast<uint32_t>(row[(bit >> 3) + 1]) << 8;
  return value >> within & ((1u << bits) - 1);
}

// Scale or bias of one group.
float group_value(const Weights& w, const void* values, int64_t group) {
  const char* bytes = static_cast<const char*>(values);
  switch (w.code) {
    case Code::kNvfp4:
      return load_some<E4m3>(bytes + group, 1)[0];
    case Code::kMxfp4:
    case Code::kMxfp8:
      return load_some<E8m0>(bytes + group, 1)[0];
    default:
      return scalar(w.type, values, group);
  }
}

float code_value(const Weights& w, uint32_t code) {
  if (w.code == Code::kAffine) return static_cast<float>(code);
  return w.bits == 4 ? kFp4[code] : decode_e4m3(WordLanes{} + code)[0];
}

// Values [begin, end) of a row as float32; every format, slowly.
void decode(const Weights& w, int64_t row, int64_t begin, int64_t end, float* out) {
  if (w.code == Code::kDense) {
    for (int64_t k = begin; k < end; k++) *out++ = scalar(w.type, w.data, row * w.depth + k);
    return;
  }
  const uint8_t* codes = static_cast<const uint8_t*>(w.data) + row * row_bytes(w);
  for (int64_t k = begin; k < end;) {
    const int64_t group = k / w.group_size, next = (group + 1) * w.group_size;
    const int64_t at = row * (w.depth / w.group_size) + group;
    const Lanes scale = broadcast(group_value(w, w.scales, at));
    const Lanes bias = broadcast(w.biases == nullptr ? -0.0f : group_value(w, w.biases, at));
    for (; k < end && k < next; k++) {
      *out++ = fma(broadcast(code_value(w, code_at(codes, k, w.bits))), scale, bias)[0];
    }
  }
}

// ------------------------------------------------------------------ products

// Picks the format of a matrix and calls body(Format{}); false when there is none and `decode` must
// do.
template <typename Body>
INLINE bool with_format(const Weights& w, const Body& body) {
  switch (w.code) {
    case Code::kDense:
      switch (w.type) {
        case Float::kFloat32:
          body(Dense<float>{});
          return true;
        case Float::kBfloat16:
          body(Dense<Bfloat>{});
          return true;
        case Float::kFloat16:
          body(Dense<Half>{});
          return true;
      }
      return false;
    case Code::kAffine:
      switch (w.bits) {
        case 2:
          body(Affine<2>{});
          return true;
        case 4:
          body(Affine<4>{});
          return true;
        case 8:
          body(Affine<8>{});
          return true;
      }
      return false;
    case Code::kMxfp4:
    case Code::kNvfp4:
      body(Fp4{});
      return true;
    case Code::kMxfp8:
      body(Fp8{});
      return true;
  }
  return false;
}

struct Product {
  const PackedLayout& layout;
  const float* packed;
  float* out;  // [units, rows, kUnit]
};

INLINE void put(float* to, Lanes sum, bool first_block) {
  store(to, first_block ? sum : load(to) + sum);
}

// V row groups, from number `group` on, against R rows of activations (all there are).
template <typename Format, int R, int V>
void multiply_few(const Product& p, const Unit* units, int64_t group) {
  RowGroup rows[V];
  float* to[V];
  for (int v = 0; v < V; v++) {
    const int64_t unit = (group + v) / kUnitVectors, within = (group + v) % kUnitVectors * kLanes;
    rows[v] = RowGroup(*units[unit].weights, units[unit].first + within);
    to[v] = p.out + unit * R * kUnit + within;
  }
  const bool one_matrix = rows[0].w == rows[V - 1].w;
  const int64_t ahead = one_matrix ? V * kLanes : kUnit, depth = p.layout.depth();
  for (int64_t begin = 0; begin < depth; begin += kSumBlock) {
    const int64_t end = depth - begin < kSumBlock ? depth : begin + kSumBlock;
    Lanes sums[R][V] = {};
    unpack<Format, V>(rows, begin, end, ahead, [&](int64_t k, const Lanes(&w)[V]) {
      const float* x = p.packed + k * R;
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const Lanes factor = broadcast(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sums[r][v] = fma(factor, w[v], sums[r][v]);
      }
    });
    for (int r = 0; r < R; r++) {
      for (int v = 0; v < V; v++) put(to[v] + r * kUnit, sums[r][v], begin == 0);
    }
  }
}

template <typename Format, int R>
void multiply_few(const Product& p, const Unit* units, int64_t count) {
  constexpr int V = few_vectors(R);
  const int64_t groups = count * kUnitVectors;
  int64_t group = 0;
  for (; group + V <= groups; group += V) multiply_few<Format, R, V>(p, units, group);
  for (; group < groups; group += 2) multiply_few<Format, R, 2>(p, units, group);
}

// As multiply_few for the R rows there are; R counts down to it.
template <typename Format, int R = kFewRows>
void multiply_few_rows(const Product& p, const Unit* units, int64_t count) {
  if constexpr (R > 0) {
    if (p.layout.rows() != R) return multiply_few_rows<Format, R - 1>(p, units, count);
    multiply_few<Format, R>(p, units, count);
  }
}

// panel[k][column]: the unit's weights of depths [begin, end).
template <typename Format>
void fill_panel(const Unit& unit, int64_t begin, int64_t end, float* panel) {
  for (int64_t column = 0; column < kUnit; column += 2 * kLanes) {
    const RowGroup rows[2] = {{*unit.weights, unit.first + column},
                              {*unit.weights, unit.first + column + kLanes}};
    float* to = panel + column - begin * kUnit;
    unpack<Format, 2>(rows, begin, end, kUnit, [&](int64_t k, const Lanes(&w)[2]) {
      store(to + k * kUnit, w[0]);
      store(to + k * kUnit + kLanes, w[1]);
    });
  }
}

// The same by way of `decode`; `rows` holds [kUnit, kSumBlock].
void fill_panel_slowly(const Unit& unit, int64_t begin, int64_t end, float* rows, float* panel) {
  const RowGroup all(*unit.weights, unit.first);
  for (int64_t i = 0; i < kUnit; i++) {
    const int64_t row = unit.first + i < all.w->rows ? unit.first + i : all.w->rows - 1;
    decode(*unit.weights, row, begin, end, rows + i * kSumBlock);
  }
  const Weights dense{.rows = kUnit, .depth = kSumBlock, .data = rows};
  fill_panel<Dense<float>>({&dense, 0}, 0, end - begin, panel);
}

template <int R, int V>
INLINE void multiply_panel(const float* x, int64_t depth, const float* panel, float* out,
                           bool first_block) {
  Lanes sums[R][V] = {};
  for (int64_t k = 0; k < depth; k++) {
    Lanes w[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) w[v] = load(panel + k * kUnit + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Lanes factor = broadcast(x[k * R + r]);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sums[r][v] = fma(factor, w[v], sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) put(out + r * kUnit + v * kLanes, sums[r][v], first_block);
  }
}

template <int R = kPanelRows>
void multiply_tile(int64_t rows, const float* x, int64_t depth, const float* panel, float* out,
                   bool first_block) {
  if constexpr (R > 0) {
    if (rows != R) return multiply_tile<R - 1>(rows, x, depth, panel, out, first_block);
    for (int64_t column = 0; column < kUnit; column += kPanelVectors * kLanes) {
      multiply_panel<R, kPanelVectors>(x, depth, panel + column, out + column, first_block);
    }
  }
}

void multiply_many(const Product& p, const Unit& unit, float* scratch, float* out) {
  const int64_t depth = p.layout.depth();
  float* panel = scratch;
  for (int64_t begin = 0; begin < depth; begin += kSumBlock) {
    const int64_t end = depth - begin < kSumBlock ? depth : begin + kSumBlock;
    const bool known = with_format(*unit.weights, [&]<typename Format>(Format) {
      fill_panel<Format>(unit, begin, end, panel);
    });
    if (!known) fill_panel_slowly(unit, begin, end, scratch + kUnit * kSumBlock, panel);
    for (int64_t tile = 0; tile < p.layout.tiles(); tile++) {
      const int64_t rows = p.layout.rows_of(tile);
      multiply_tile(rows, p.packed + p.layout.offset_of(tile) + begin * rows, end - begin, panel,
                    out + p.layout.first_row(tile) * kUnit, begin == 0);
    }
  }
}

bool same_format(const Unit& left, const Unit& right) {
  const Weights &a = *left.weights, &b = *right.weights;
  return a.code == b.code && a.type == b.type && a.bits == b.bits && a.group_size == b.group_size;
}

void multiply(const PackedLayout& layout, const float* packed, const Unit* units, int64_t count,
              float* scratch, float* out) {
  const Product p{layout, packed, out};
  if (layout.rows() <= kFewRows && same_format(units[0], units[count - 1])) {
    const bool known = with_format(*units[0].weights, [&]<typename Format>(Format) {
      multiply_few_rows<Format>(p, units, count);
    });
    if (known) return;
  }
  for (int64_t u = 0; u < count; u++) {
    multiply_many(p, units[u], scratch, out + u * layout.rows() * kUnit);
  }
}

}  // namespace

namespace POMONA_VARIANT {

MatmulKernels matmul_kernels() { return {kPanelRows, multiply, decode}; }

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
