// Values of float32 or 16 bits, N at a time: one load or store for up to 16 bytes.
typedef unsigned char u8;

template <bool WIDE> struct Kind { typedef u16 type; };
template <> struct Kind<true> { typedef float type; };
template <int WIDE> using Number = typename Kind<WIDE != 0>::type;

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };

template <int N, class T> DEVICE Pack<T, N> load(const T* from) { return *(const Pack<T, N>*)from; }
template <int N, class T> DEVICE void store(T* to, const Pack<T, N>& pack) { *(Pack<T, N>*)to = pack; }
