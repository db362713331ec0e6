#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

// Rows times width of a tile: its queries, scores and sums then stay in the second-level cache.
constexpr int64_t kTileFloats = 96 * 64;

// Multiply-adds below which waking other threads costs more than it saves (about 30 us).
constexpr int64_t kThreadedWork = 1 << 20;

int64_t pad(int64_t n) { return (n + kPadding - 1) / kPadding * kPadding; }

// A thread's buffers; they grow to the largest tile it has seen and are then reused.
class Scratch {
 public:
  TileScratch layout(const Attention& a, int64_t rows) {
    const int64_t columns = pad(a.keys.block_size), width = pad(a.values.dim);
    const int64_t sizes[] = {pad(rows * a.keys.dim),
                             a.keys.dim * columns,
                             a.values.block_size * width,
                             rows * columns,
                             rows * width,
                             pad(rows),
                             pad(rows)};
    int64_t total = 0;
    for (int64_t size : sizes) total += size;
    if (total > capacity_) {
      buffer_.reset(static_cast<float*>(::operator new(total * sizeof(float), kAlignment)));
      capacity_ = total;
    }
    float* parts[std::size(sizes)];
    float* next = buffer_.get();
    for (size_t i = 0; i < std::size(sizes); next += sizes[i++]) parts[i] = next;
    return {columns, width, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6]};
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<float[], Free> buffer_;
  int64_t capacity_ = 0;
};

std::vector<Tile> split_into_tiles(const Attention& a) {
  const int64_t group = a.q.heads / a.keys.heads;
  const int64_t row_floats = group * std::max(a.keys.dim, a.values.dim);
  const int64_t limit = std::max<int64_t>(kTileFloats / row_floats, 1);
  std::vector<Tile> tiles;
  for (int64_t first = 0, next; first < a.rows.tokens; first = next) {
    next = first + 1;
    while (next < a.rows.tokens && next - first < limit &&
           a.rows.sequence[next] == a.rows.sequence[first]) {
      next++;
    }
    for (int64_t head = 0; head < a.keys.heads; head++) {
      tiles.push_back({first, next - first, head});
    }
  }
  return tiles;
}

int64_t multiply_adds(const Attention& a) {
  int64_t keys = 0;
  for (int64_t t = 0; t < a.rows.tokens; t++) {
    const int64_t visible = a.rows.visible[t];
    keys += a.window > 0 ? std::min(visible, a.window) : visible;
  }
  return keys * a.q.heads * (a.keys.dim + a.values.dim);
}

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
  const std::vector<Tile> tiles = split_into_tiles(a);
  const auto attend_some = [&](int64_t begin, int64_t end) {
    thread_local Scratch scratch;
    for (int64_t i = begin; i < end; i++) {
      const int64_t rows = tiles[i].tokens * (a.q.heads / a.keys.heads);
      kernels().attend_tile(a, tiles[i], scratch.layout(a, rows));
    }
  };
  const int64_t count = static_cast<int64_t>(tiles.size());
  if (multiply_adds(a) < kThreadedWork) {
    attend_some(0, count);
  } else {
    ThreadPool::shared().run(count, 1, attend_some);
  }
}

}  // namespace pomona::kernels
