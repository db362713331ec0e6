#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

// Rows times width of a tile: its queries, scores and sums then stay in the second-level cache.
constexpr int64_t kTileFloats = 96 * 64;

// Floats of partial sums below which sharing out their merge costs more than it saves.
constexpr int64_t kThreadedMerge = 1 << 16;

// Pieces of work for each thread, so that the last ones to finish differ by little.
constexpr int64_t kPiecesPerThread = 4;

int64_t pad(int64_t n) { return (n + kPadding - 1) / kPadding * kPadding; }

int64_t group_of(const Attention& a) { return a.q.heads / a.keys.heads; }

int64_t rows_of(const Attention& a, const Tile& tile) {
  return tile.tokens * tile.heads * group_of(a);
}

int64_t floats_of_sums(const Attention& a, int64_t rows) {
  return rows * pad(a.values.dim) + 2 * pad(rows);
}

Sums sums_at(float* buffer, const Attention& a, int64_t rows) {
  float* const peak = buffer + rows * pad(a.values.dim);
  return {buffer, peak, peak + pad(rows)};
}

void attend_tile(const Attention& a, const Tile& tile) {
  thread_local AlignedFloats buffer;
  const int64_t rows = rows_of(a, tile), width = pad(a.values.dim), sums = floats_of_sums(a, rows);
  const int64_t sizes[] = {pad(rows * a.keys.dim),
                           a.keys.dim * kChunk,
                           kChunk * width,
                           rows / tile.heads * kChunk,
                           sums,
                           sums};
  float* parts[std::size(sizes)];
  float* next = buffer.reserve(std::accumulate(std::begin(sizes), std::end(sizes), int64_t{0}));
  for (size_t i = 0; i < std::size(sizes); next += sizes[i++]) parts[i] = next;
  kernels().attend_tile(a, tile,
                        {width, parts[0], parts[1], parts[2], parts[3], sums_at(parts[4], a, rows),
                         sums_at(parts[5], a, rows)});
}

// How a call is cut into tiles. The cuts decide about time alone: see attend_tile.h.
class Plan {
 public:
  // Keeps its memory from call to call.
  void make(const Attention& a, int threads) {
    tiles_.clear();
    merges_.clear();
    partial_floats_ = 0;
    int64_t keys = 0;
    for (int64_t t = 0; t < a.rows.tokens; t++) keys += seen_by(a, t);
    if (keys * a.q.heads * (a.keys.dim + a.values.dim) < kThreadedWork) threads = 1;
    most_ = threads == 1 ? INT64_MAX : keys * a.keys.heads / (threads * kPiecesPerThread);
    const int64_t row_floats = group_of(a) * std::max(a.keys.dim, a.values.dim);
    const int64_t limit = std::max<int64_t>(kTileFloats / row_floats, 1);
    for (int64_t first = 0, next; first < a.rows.tokens; first = next) {
      next = first + 1;
      while (next < a.rows.tokens && next - first < limit &&
             a.rows.sequence[next] == a.rows.sequence[first]) {
        next++;
      }
      cut(a, first, next - first, std::clamp<int64_t>(limit / (next - first), 1, a.keys.heads));
    }
    threads_ = threads;
  }

  void run(const Attention& a) {
    thread_local AlignedFloats buffer;
    float* const partials = buffer.reserve(partial_floats_);
    run(a, tiles_, partials, threads_ > 1);
    run(a, merges_, partials, partial_floats_ > kThreadedMerge);
  }

 private:
  // Its partial sums begin at `partial` floats into the buffer of the call.
  struct Piece {
    Tile tile;
    int64_t partial;
  };

  static int64_t first_seen(const Attention& a, int64_t token) {
    return a.window > 0 ? std::max<int64_t>(a.rows.visible[token] - a.window, 0) : 0;
  }
  static int64_t seen_by(const Attention& a, int64_t token) {
    return a.rows.visible[token] - first_seen(a, token);
  }

  // Cuts a run of tokens by its heads, and by its keys where a tile would be more than `most_`.
  void cut(const Attention& a, int64_t first, int64_t tokens, int64_t heads) {
    int64_t keys = 0, low = INT64_MAX, high = 0;
    for (int64_t t = first; t < first + tokens; t++) {
      if (a.rows.visible[t] == 0) continue;
      keys += seen_by(a, t);
      low = std::min(low, first_seen(a, t));
      high = std::max<int64_t>(high, a.rows.visible[t]);
    }
    const int64_t split = high > 0 ? low / kSplit : 0, end = (high + kSplit - 1) / kSplit;
    const int64_t splits = std::max<int64_t>(end - split, 1);
    while (heads > 1 && keys * heads / splits > most_) heads = (heads + 1) / 2;
    for (int64_t head = 0; head < a.keys.heads; head += heads) {
      const int64_t count = std::min(heads, a.keys.heads - head);
      Tile tile{first, tokens, head, count, Stage::kWhole, split, end, {}, 0};
      if (splits == 1 || keys * count <= most_) {
        tiles_.push_back({tile, 0});
        continue;
      }
      tile.partial_stride = floats_of_sums(a, rows_of(a, tile));
      tile.stage = Stage::kMerge;
      merges_.push_back({tile, partial_floats_});
      tile.stage = Stage::kSplit;
      for (; tile.split < end; tile.split++, partial_floats_ += tile.partial_stride) {
        tiles_.push_back({tile, partial_floats_});
      }
    }
  }

  static void run(const Attention& a, const std::vector<Piece>& pieces, float* partials,
                  bool threaded) {
    const auto attend = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        Tile tile = pieces[i].tile;
        tile.partial = sums_at(partials + pieces[i].partial, a, rows_of(a, tile));
        attend_tile(a, tile);
      }
    };
    const int64_t count = static_cast<int64_t>(pieces.size());
    threaded ? ThreadPool::shared().run(count, 1, attend) : attend(0, count);
  }

  std::vector<Piece> tiles_, merges_;
  int64_t partial_floats_ = 0;
  int64_t most_ = 0;  // keys times KV heads of a tile, when cutting it helps
  int threads_ = 1;
};

template <typename T>
void copy_strided(const char* from, int64_t stride, int64_t count, char* to) {
  for (int64_t i = 0; i < count; i++) {
    std::memcpy(to + i * sizeof(T), from + i * stride * sizeof(T), sizeof(T));
  }
}

}  // namespace

void copy_blocks(const SlabHalf& slab, std::span<const int32_t> copies) {
  const int64_t bytes = slab.block_size * slab.heads * slab.dim * size_of(slab.type);
  char* data = static_cast<char*>(slab.data);
  for (size_t i = 0; i < copies.size(); i += 2) {
    std::memmove(data + copies[i + 1] * bytes, data + copies[i] * bytes, bytes);
  }
}

void write_rows(const TokenRows& rows, const SlabHalf& slab, std::span<const int32_t> slots) {
  const int64_t size = size_of(slab.type), head_bytes = slab.dim * size;
  for (size_t t = 0; t < slots.size(); t++) {
    const char* from = static_cast<const char*>(rows.data) +
                       (static_cast<int64_t>(t) / rows.length * rows.batch_stride +
                        static_cast<int64_t>(t) % rows.length * rows.token_stride) *
                           size;
    char* to = static_cast<char*>(slab.data) + slots[t] * slab.heads * head_bytes;
    for (int64_t head = 0; head < slab.heads; head++, to += head_bytes) {
      const char* source = from + head * rows.head_stride * size;
      if (rows.dim_stride == 1) {
        std::memcpy(to, source, head_bytes);
      } else if (size == 4) {
        copy_strided<uint32_t>(source, rows.dim_stride, slab.dim, to);
      } else {
        copy_strided<uint16_t>(source, rows.dim_stride, slab.dim, to);
      }
    }
  }
}

void gather_rows(const SlabHalf& slab, std::span<const int32_t> table, int64_t count, void* out) {
  const int64_t head_bytes = slab.dim * size_of(slab.type);
  const char* data = static_cast<const char*>(slab.data);
  for (int64_t t = 0; t < count; t++) {
    const int64_t slot = table[t / slab.block_size] * slab.block_size + t % slab.block_size;
    for (int64_t head = 0; head < slab.heads; head++) {
      std::memcpy(static_cast<char*>(out) + (head * count + t) * head_bytes,
                  data + (slot * slab.heads + head) * head_bytes, head_bytes);
    }
  }
}

void attend(const Attention& a) {
  thread_local Plan plan;
  plan.make(a, ThreadPool::shared().threads());
  plan.run(a);
}

}  // namespace pomona::kernels
