// What Python calls: the passes for the best instruction set that this processor has.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "call.h"

using Pass = void (*)(const Call&);
using DecoderPass = void (*)(const DecoderCall&);

void forward_baseline(const Call&);
void backward_baseline(const Call&);
void decoder_forward_baseline(const DecoderCall&);
void decoder_backward_baseline(const DecoderCall&);
#if defined(__x86_64__)
void forward_avx2(const Call&);
void backward_avx2(const Call&);
void decoder_forward_avx2(const DecoderCall&);
void decoder_backward_avx2(const DecoderCall&);
void forward_avx512(const Call&);
void forward_avx512bf16(const Call&);
void backward_avx512(const Call&);
void backward_avx512bf16(const Call&);
void decoder_forward_avx512(const DecoderCall&);
void decoder_backward_avx512(const DecoderCall&);
#endif

namespace {

struct Kernels {
    const char* name;
    bool (*runs_here)();
    Pass forward, backward;
    DecoderPass decoder_forward, decoder_backward;
    Pass forward_bfloat16, backward_bfloat16;  // or null: such calls are computed in float32
};

#if defined(__x86_64__)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");
}
#endif

const Kernels all[] = {
#if defined(__x86_64__)
    {"avx512bf16", [] { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }, forward_avx512, backward_avx512,
     decoder_forward_avx512, decoder_backward_avx512, forward_avx512bf16, backward_avx512bf16},
    {"avx512", has_avx512, forward_avx512, backward_avx512, decoder_forward_avx512, decoder_backward_avx512, nullptr, nullptr},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, forward_avx2,
     backward_avx2, decoder_forward_avx2, decoder_backward_avx2, nullptr, nullptr},
#endif
    {"baseline", [] { return true; }, forward_baseline, backward_baseline, decoder_forward_baseline,
     decoder_backward_baseline, nullptr, nullptr},
};

const Kernels* best() {
    for (const Kernels& kernels : all)
        if (kernels.runs_here()) return &kernels;
    return nullptr;
}

const Kernels* chosen = best();

// Results of 32 MB and more are memory that the system has just mapped (smaller ones are kept by malloc), with a page
// fault for every 4 KB. With huge pages it is one for every 2 MB. This is advice: where the system does not follow it,
// nothing changes.
void prefer_huge_pages(const float* data, int64_t count) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t size = uintptr_t{1} << 21, address = reinterpret_cast<uintptr_t>(data);
    const uintptr_t begin = (address + size - 1) / size * size, end = (address + 4 * count) / size * size;
    if (data && 4 * count >= 32 << 20) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

bool rounds(const Call& call) { return call.bfloat16 && chosen->forward_bfloat16 && !is_few(call); }

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void pru_forward(const Call* call) {
    const int64_t units = call->steps * call->batch * call->hidden;
    prefer_huge_pages(call->out, units);
    prefer_huge_pages(call->cells, units);
    prefer_huge_pages(call->activations, 4 * units);
    (rounds(*call) ? chosen->forward_bfloat16 : chosen->forward)(*call);
}
EXPORTED void pru_backward(const Call* call) {
    prefer_huge_pages(call->grad_x, call->steps * call->batch * (call->levels ? call->features : 4 * call->hidden));
    (rounds(*call) ? chosen->backward_bfloat16 : chosen->backward)(*call);
}
// Returns the first row whose target is no word, and computes nothing then; else -1.
EXPORTED int64_t pru_decoder_forward(const DecoderCall* call) {
    for (int64_t row = 0; row < call->rows; ++row)
        if (call->targets[row] < 0 || call->targets[row] >= call->words) return row;
    prefer_huge_pages(call->exponentials, call->rows * ((call->words + 63) / 64 * 64));
    chosen->decoder_forward(*call);
    return -1;
}
EXPORTED void pru_decoder_backward(const DecoderCall* call) { chosen->decoder_backward(*call); }
EXPORTED const char* pru_kernels() { return chosen->name; }

// Takes other kernels than the best, for tests; returns whether this processor has them.
EXPORTED int pru_choose_kernels(const char* name) {
    for (const Kernels& kernels : all)
        if (strcmp(kernels.name, name) == 0 && kernels.runs_here()) {
            chosen = &kernels;
            return 1;
        }
    return 0;
}
