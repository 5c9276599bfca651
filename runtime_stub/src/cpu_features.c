/* cpu_features.c: checks the CPU features that the bundle's code requires, and selects the best CPU level. Names are
 * those of /proc/cpuinfo.
 *
 * Not __builtin_cpu_supports: it brings a constructor of libgcc into the bundle. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

/* A bit of one of the words that read_cpu() fills, and the register state that the kernel must save for it. */
typedef struct {
  char name[20];
  uint8_t word;
  uint8_t bit;
  uint8_t state;
} feature_t;

#if defined(__x86_64__)
#include <cpuid.h>

enum { L1_ECX, L1_EDX, L7_EBX, L7_ECX, L7_EDX, L7_1_EAX, L7_1_EDX, EXT_ECX, NUM_WORDS };
enum { NO_STATE, AVX, AVX512, AMX };

/* Bit numbers: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E. */
static const feature_t features[] = {
    {"sse3", L1_ECX, 0, 0},
    {"pni", L1_ECX, 0, 0}, /* what Linux calls sse3 */
    {"pclmulqdq", L1_ECX, 1, 0},
    {"ssse3", L1_ECX, 9, 0},
    {"fma", L1_ECX, 12, AVX},
    {"cx16", L1_ECX, 13, 0},
    {"sse4_1", L1_ECX, 19, 0},
    {"sse4_2", L1_ECX, 20, 0},
    {"movbe", L1_ECX, 22, 0},
    {"popcnt", L1_ECX, 23, 0},
    {"aes", L1_ECX, 25, 0},
    {"xsave", L1_ECX, 26, 0},
    {"avx", L1_ECX, 28, AVX},
    {"f16c", L1_ECX, 29, AVX},
    {"rdrand", L1_ECX, 30, 0},
    {"cx8", L1_EDX, 8, 0},
    {"cmov", L1_EDX, 15, 0},
    {"mmx", L1_EDX, 23, 0},
    {"sse", L1_EDX, 25, 0},
    {"sse2", L1_EDX, 26, 0},
    {"fsgsbase", L7_EBX, 0, 0},
    {"bmi1", L7_EBX, 3, 0},
    {"avx2", L7_EBX, 5, AVX},
    {"bmi2", L7_EBX, 8, 0},
    {"erms", L7_EBX, 9, 0},
    {"avx512f", L7_EBX, 16, AVX512},
    {"avx512dq", L7_EBX, 17, AVX512},
    {"rdseed", L7_EBX, 18, 0},
    {"adx", L7_EBX, 19, 0},
    {"avx512ifma", L7_EBX, 21, AVX512},
    {"clflushopt", L7_EBX, 23, 0},
    {"clwb", L7_EBX, 24, 0},
    {"avx512cd", L7_EBX, 28, AVX512},
    {"sha_ni", L7_EBX, 29, 0},
    {"avx512bw", L7_EBX, 30, AVX512},
    {"avx512vl", L7_EBX, 31, AVX512},
    {"avx512vbmi", L7_ECX, 1, AVX512},
    {"avx512_vbmi2", L7_ECX, 6, AVX512},
    {"gfni", L7_ECX, 8, 0},
    {"vaes", L7_ECX, 9, AVX},
    {"vpclmulqdq", L7_ECX, 10, AVX},
    {"avx512_vnni", L7_ECX, 11, AVX512},
    {"avx512_bitalg", L7_ECX, 12, AVX512},
    {"avx512_vpopcntdq", L7_ECX, 14, AVX512},
    {"movdiri", L7_ECX, 27, 0},
    {"movdir64b", L7_ECX, 28, 0},
    {"avx512_vp2intersect", L7_EDX, 8, AVX512},
    {"amx_bf16", L7_EDX, 22, AMX},
    {"avx512_fp16", L7_EDX, 23, AVX512},
    {"amx_tile", L7_EDX, 24, AMX},
    {"amx_int8", L7_EDX, 25, AMX},
    {"avx_vnni", L7_1_EAX, 4, AVX},
    {"avx512_bf16", L7_1_EAX, 5, AVX512},
    {"amx_fp16", L7_1_EAX, 21, AMX},
    {"avx_ifma", L7_1_EAX, 23, AVX},
    {"avx_vnni_int8", L7_1_EDX, 4, AVX},
    {"avx_ne_convert", L7_1_EDX, 5, AVX},
    {"avx_vnni_int16", L7_1_EDX, 10, AVX},
    {"lahf_lm", EXT_ECX, 0, 0},
    {"abm", EXT_ECX, 5, 0},
    {"3dnowprefetch", EXT_ECX, 8, 0},
    {"xop", EXT_ECX, 11, AVX},
    {"fma4", EXT_ECX, 16, AVX},
    {"tbm", EXT_ECX, 21, 0},
};

static uint32_t read_saved_states(uint32_t leaf1_ecx) {
  static const uint32_t components[] = {[NO_STATE] = 0, [AVX] = 0x6, [AVX512] = 0xe6, [AMX] = 0x60000};
  uint32_t low = 0, high, states = 1u << NO_STATE;
  if (leaf1_ecx & (1u << 27)) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* OSXSAVE */
  for (int i = AVX; i <= AMX; ++i) states |= (uint32_t)((low & components[i]) == components[i]) << i;
  return states;
}

/* Fills the words and returns the set of states that the kernel saves. */
static uint32_t read_cpu(uint32_t words[NUM_WORDS]) {
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    words[L1_ECX] = c;
    words[L1_EDX] = d;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    words[L7_EBX] = b;
    words[L7_ECX] = c;
    words[L7_EDX] = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
      words[L7_1_EAX] = a;
      words[L7_1_EDX] = d;
    }
  }
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) words[EXT_ECX] = c;
  return read_saved_states(words[L1_ECX]);
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

enum { HWCAP_LOW, HWCAP2_LOW, NUM_WORDS };

/* Bit numbers: Linux, arch/arm64/include/uapi/asm/hwcap.h. The kernel reports only what it also saves. */
static const feature_t features[] = {
    {"fp", HWCAP_LOW, 0, 0},          {"asimd", HWCAP_LOW, 1, 0},      {"evtstrm", HWCAP_LOW, 2, 0},
    {"aes", HWCAP_LOW, 3, 0},         {"pmull", HWCAP_LOW, 4, 0},      {"sha1", HWCAP_LOW, 5, 0},
    {"sha2", HWCAP_LOW, 6, 0},        {"crc32", HWCAP_LOW, 7, 0},      {"atomics", HWCAP_LOW, 8, 0},
    {"fphp", HWCAP_LOW, 9, 0},        {"asimdhp", HWCAP_LOW, 10, 0},   {"cpuid", HWCAP_LOW, 11, 0},
    {"asimdrdm", HWCAP_LOW, 12, 0},   {"jscvt", HWCAP_LOW, 13, 0},     {"fcma", HWCAP_LOW, 14, 0},
    {"lrcpc", HWCAP_LOW, 15, 0},      {"dcpop", HWCAP_LOW, 16, 0},     {"sha3", HWCAP_LOW, 17, 0},
    {"sm3", HWCAP_LOW, 18, 0},        {"sm4", HWCAP_LOW, 19, 0},       {"asimddp", HWCAP_LOW, 20, 0},
    {"sha512", HWCAP_LOW, 21, 0},     {"sve", HWCAP_LOW, 22, 0},       {"asimdfhm", HWCAP_LOW, 23, 0},
    {"dit", HWCAP_LOW, 24, 0},        {"uscat", HWCAP_LOW, 25, 0},     {"ilrcpc", HWCAP_LOW, 26, 0},
    {"flagm", HWCAP_LOW, 27, 0},      {"ssbs", HWCAP_LOW, 28, 0},      {"sb", HWCAP_LOW, 29, 0},
    {"paca", HWCAP_LOW, 30, 0},       {"pacg", HWCAP_LOW, 31, 0},      {"dcpodp", HWCAP2_LOW, 0, 0},
    {"sve2", HWCAP2_LOW, 1, 0},       {"sveaes", HWCAP2_LOW, 2, 0},    {"svepmull", HWCAP2_LOW, 3, 0},
    {"svebitperm", HWCAP2_LOW, 4, 0}, {"svesha3", HWCAP2_LOW, 5, 0},   {"svesm4", HWCAP2_LOW, 6, 0},
    {"flagm2", HWCAP2_LOW, 7, 0},     {"frint", HWCAP2_LOW, 8, 0},     {"svei8mm", HWCAP2_LOW, 9, 0},
    {"svef32mm", HWCAP2_LOW, 10, 0},  {"svef64mm", HWCAP2_LOW, 11, 0}, {"svebf16", HWCAP2_LOW, 12, 0},
    {"i8mm", HWCAP2_LOW, 13, 0},      {"bf16", HWCAP2_LOW, 14, 0},     {"dgh", HWCAP2_LOW, 15, 0},
    {"rng", HWCAP2_LOW, 16, 0},       {"bti", HWCAP2_LOW, 17, 0},      {"mte", HWCAP2_LOW, 18, 0},
    {"sme", HWCAP2_LOW, 23, 0},
};

static uint32_t read_cpu(uint32_t words[NUM_WORDS]) {
  words[HWCAP_LOW] = (uint32_t)getauxval(AT_HWCAP);
  words[HWCAP2_LOW] = (uint32_t)getauxval(AT_HWCAP2);
  return 1;
}

#else
#error "packager bundles run on x86-64 and aarch64"
#endif

static int has_feature(const char *name, const uint32_t words[NUM_WORDS], uint32_t states) {
  for (size_t i = 0; i < sizeof features / sizeof *features; ++i) {
    const feature_t *feature = &features[i];
    if (!strcmp(feature->name, name)) return words[feature->word] >> feature->bit & states >> feature->state & 1;
  }
  return 0; /* newer than this file: it cannot be asserted, so it counts as missing */
}

typedef struct {
  uint32_t words[NUM_WORDS];
  uint32_t states;
} cpu_t;

/* Writes those of the features that the CPU lacks, each after a blank, and returns how many bytes they have. */
static size_t list_missing(const cpu_t *cpu, const char *const *name, char missing[PK_MESSAGE_BYTES / 2]) {
  size_t used = 0;
  missing[0] = 0;
  for (; name && *name; ++name) {
    if (has_feature(*name, cpu->words, cpu->states) || used >= PK_MESSAGE_BYTES / 2) continue;
    used += (size_t)snprintf(missing + used, PK_MESSAGE_BYTES / 2 - used, " %s", *name);
  }
  return used;
}

static int32_t refuse_unknown_level(const char *wanted) {
  char known[PK_MESSAGE_BYTES / 2] = "";
  size_t used = 0;
  for (int32_t i = 0; i < pk_model.num_levels && used < sizeof known; ++i) {
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", pk_model.levels[i].name);
  }
  return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: cpu_level is '%.64s', expected %s", wanted,
                 pk_model.num_levels ? known : "NULL for a bundle without CPU levels");
}

int32_t pk_choose_level(const char *wanted, const pk_level_t **level) {
  cpu_t cpu = {{0}, 0};
  char missing[PK_MESSAGE_BYTES / 2];
  const pk_level_t *levels = pk_model.levels;
  *level = NULL;
  cpu.states = read_cpu(cpu.words);
  if (list_missing(&cpu, pk_model.cpu_features, missing)) {
    return pk_fail(NULL, PACKAGER_ERROR_MACHINE, "this CPU (or its kernel) lacks what the bundle's code uses:%s",
                   missing);
  }
  for (int32_t i = 0; i < pk_model.num_levels; ++i) {
    if (wanted && strcmp(wanted, levels[i].name)) continue;
    if (!list_missing(&cpu, levels[i].cpu_features, missing)) {
      *level = &levels[i];
    } else if (wanted) {
      return pk_fail(NULL, PACKAGER_ERROR_MACHINE, "this CPU (or its kernel) lacks what the code for %s uses:%s",
                     wanted, missing);
    }
  }
  return wanted && !*level ? refuse_unknown_level(wanted) : PACKAGER_OK;
}
