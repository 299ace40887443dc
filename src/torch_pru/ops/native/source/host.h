// What the operators of host.cpp are made of: the functions of PyTorch and CUDA that they call, the plans that Python makes for
// them, and tensors, allocations, products and launches.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

typedef int64_t i64;
typedef uint64_t Value;                                // an argument or result of an operator; of a tensor its handle
typedef struct TensorOpaque* Handle;
typedef struct ListOpaque* List;
typedef struct LibraryOpaque* Library;
typedef void Operator(Value* stack, uint64_t inputs, uint64_t outputs);

// ---- what is called; all of these return 0, or a number that says why not

struct Attribute {                                     // CUlaunchAttribute
  uint32_t id, padding;
  uint32_t value[16];
};
struct Configuration {                                 // CUlaunchConfig
  uint32_t blocks[3], threads[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  uint32_t count;
};

struct Functions {                                     // in the order of ops/cuda/host.py
  int32_t (*empty)(i64 dims, const i64* sizes, const i64* strides, int32_t dtype, int32_t kind, int32_t index, Handle* to);
  int32_t (*view)(Handle, i64 dims, const i64* sizes, const i64* strides, i64 offset, Handle* to);
  int32_t (*data)(Handle, void** to);
  int32_t (*sizes)(Handle, i64** to);
  int32_t (*dtype)(Handle, int32_t* to);
  int32_t (*contiguous)(Handle, bool* to);
  int32_t (*forget)(Handle);
  int32_t (*copy)(Handle to, Handle from, int32_t non_blocking);
  int32_t (*new_list)(size_t reserved, List* to);
  int32_t (*get)(List, size_t at, Value* to);
  int32_t (*size)(List, size_t* to);
  int32_t (*push)(List, Value);
  int32_t (*forget_list)(List);
  int32_t (*new_library)(const char* name, const char* file, uint32_t line, Library* to);
  int32_t (*define)(Library, const char* schema);
  int32_t (*new_implementation)(const char* name, const char* key, const char* file, uint32_t line, Library* to);
  int32_t (*implement)(Library, const char* name, Operator*, uint64_t built_for);
  int32_t (*mm)(Handle to, Handle a, Handle b);
  int32_t (*addmm)(Handle to, Handle sum, Handle a, Handle b, double beta, double alpha);
  int32_t (*bmm)(Handle to, Handle a, Handle b);
  int32_t (*launch)(const Configuration*, void* function, void** arguments, void** extra);
  int32_t (*fill16)(uint64_t at, uint16_t value, size_t count, void* stream);
};

// ---- plans: what calls of one kind have in common; the same structures are in ops/cuda/host.py

enum { MOST_LEVELS = 12, MOST_GIVEN = 24 };

struct Kernel {
  i64 function, blocks[2], threads, cluster, shared_bytes, cooperative;
};

struct Fold {                                          // the arguments of fold and unfold but for addresses of weights
  i64 first[MOST_LEVELS], share[MOST_LEVELS], units[MOST_LEVELS], widths[MOST_LEVELS], levels, columns;
};

struct Plan {
  const Functions* functions;
  i64 device_kind, device_index, dtype, kept, cell, bias, level;  // kept: of activations and cells
  i64 features, width, groups, padded, bias_rows;      // padded: units of a group, as the exchange and products have them
  i64 residual, real_bias, real_cells;
  Fold bands;
  // fold, spread, forward; or unfold, collect, backward, and the rest; or layer_step alone. A residual pass is there where
  // there is a residual that the recurrence does not add itself.
  Kernel input, residual_pass, recurrence, tail;
};

enum { INT16 = 2, INT64 = 4, FLOAT32 = 6 };                // PyTorch's numbers for dtypes

class Tensor {
 public:
  Tensor() {}
  Tensor(const Functions& f, Handle handle) : f(&f), handle(handle) {}
  Tensor(Tensor&& other) : f(other.f), handle(other.release()) {}
  Tensor& operator=(Tensor&& other) {
    forget();
    f = other.f;
    handle = other.release();
    return *this;
  }
  ~Tensor() { forget(); }
  explicit operator bool() const { return handle; }
  Handle release() {
    Handle mine = handle;
    handle = nullptr;
    return mine;
  }
  i64 address() const {                                // 0 for no tensor
    void* at = nullptr;
    if (handle) f->data(handle, &at);
    return (i64)at;
  }
  const Functions* f = nullptr;
  Handle handle = nullptr;

 private:
  void forget() {
    if (handle) f->forget(handle);
  }
};

// The tensors of a call in the order of its schema. Those that are not `present` are empty; a kernel takes the others as they
// are, or not at all: they must be contiguous, at a multiple of 16 bytes, and of one dtype.
class Given {
 public:
  Given(const Functions& f, List list) : f(f) {
    size_t size = 0;
    f.size(list, &size);
    for (; count < size && count < MOST_GIVEN; count++) {
      Value value = 0;
      f.get(list, count, &value);
      tensors[count] = Tensor(f, (Handle)value);
    }
    f.forget_list(list);
  }
  const Tensor& next(i64 dtype, bool present = true) {
    if (!present || at >= count) return none;
    const Tensor& tensor = tensors[at++];
    int32_t its = 0;
    bool contiguous = false;
    f.dtype(tensor.handle, &its);
    f.contiguous(tensor.handle, &contiguous);
    if (its != dtype || !contiguous || tensor.address() % 16) fit = false;
    return tensor;
  }
  bool fit = true;

 private:
  const Functions& f;
  Tensor tensors[MOST_GIVEN], none;
  size_t count = 0, at = 0;
};

class Call {
 public:
  Call(const Plan& plan, Value stream) : plan(plan), f(*plan.functions), stream((void*)stream) {}

  template <size_t N>
  Tensor empty(const i64 (&sizes)[N], i64 dtype) {
    i64 strides[N], stride = 1;
    for (size_t i = N; i-- > 0; stride *= sizes[i]) strides[i] = stride;
    Handle made = nullptr;
    if (!failed) failed = f.empty(N, sizes, strides, dtype, plan.device_kind, plan.device_index, &made) != 0;
    return Tensor(f, made);
  }
  template <size_t N>
  Tensor view(const Tensor& of, const i64 (&sizes)[N], const i64 (&strides)[N], i64 offset = 0) {
    Handle made = nullptr;
    if (!failed) failed = f.view(of.handle, N, sizes, strides, offset, &made) != 0;
    return Tensor(f, made);
  }
  void mm(const Tensor& to, const Tensor& a, const Tensor& b) {
    if (!failed) failed = f.mm(to.handle, a.handle, b.handle) != 0;
  }
  void addmm(const Tensor& to, const Tensor& a, const Tensor& b) {
    if (!failed) failed = f.addmm(to.handle, to.handle, a.handle, b.handle, 1, 1) != 0;
  }
  void bmm(const Tensor& to, const Tensor& a, const Tensor& b) {
    if (!failed) failed = f.bmm(to.handle, a.handle, b.handle) != 0;
  }
  void copy(const Tensor& to, const Tensor& from) {
    if (!failed) failed = f.copy(to.handle, from.handle, 1) != 0;
  }
  // All bits set: the grid kernels' "not there yet".
  void fill(const Tensor& values, i64 count) {
    if (!failed) failed = f.fill16(values.address(), 0xffff, count, stream) != 0;
  }
  // A kernel's one argument is a structure of addresses and numbers.
  void launch(const Kernel& kernel, const i64* words) {
    if (failed) return;
    Attribute attributes[2] = {};
    Configuration configuration = {
        {(uint32_t)kernel.blocks[0], (uint32_t)kernel.blocks[1], 1}, {(uint32_t)kernel.threads, 1, 1},
        (uint32_t)kernel.shared_bytes, stream, attributes, 0};
    if (kernel.cluster > 1) {
      Attribute& attribute = attributes[configuration.count++];
      attribute.id = 4;                                // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
      attribute.value[0] = (uint32_t)kernel.cluster, attribute.value[1] = attribute.value[2] = 1;
    }
    if (kernel.cooperative) {
      Attribute& attribute = attributes[configuration.count++];
      attribute.id = 2;                                // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
      attribute.value[0] = 1;
    }
    void* arguments[1] = {(void*)words};
    failed = f.launch(&configuration, (void*)kernel.function, arguments, nullptr) != 0;
  }
  // fold or unfold: all levels and the one matrix.
  void fold(const Tensor* levels, const Tensor& folded) {
    const Fold& bands = plan.bands;
    i64 words[5 * MOST_LEVELS + 3], *to = words;
    for (i64 k = 0; k < bands.levels; k++) *to++ = levels[k].address();
    for (i64 k = 0; k < bands.levels; k++) *to++ = bands.first[k];
    for (i64 k = 0; k < bands.levels; k++) *to++ = bands.share[k];
    *to++ = folded.address();
    for (i64 k = 0; k < bands.levels; k++) *to++ = bands.units[k];
    for (i64 k = 0; k < bands.levels; k++) *to++ = bands.widths[k];
    *to++ = plan.features;
    *to++ = bands.columns;
    launch(plan.input, words);
  }
  void add(Tensor&& result) { results[count++] = static_cast<Tensor&&>(result); }
  Value finish() {
    List list = nullptr;
    f.new_list(count, &list);
    if (!failed)
      for (size_t i = 0; i < count; i++) f.push(list, (Value)results[i].release());
    return (Value)list;
  }

  const Plan& plan;
  bool failed = false;

 private:
  const Functions& f;
  void* stream;
  Tensor results[MOST_GIVEN];
  size_t count = 0;
};

}  // namespace
