/* Runs a simulated chip's kernels inside the host process, and survives their bad memory accesses:
 * device memory lies between guard pages, and a fault while a kernel runs comes back as an address. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD 4096u
#define FRESH (4u << 20) /* bytes of the file that all fresh memory maps: 80 GiB are 20,000 mappings of 65,530 */

static _Thread_local sigjmp_buf jump;
static _Thread_local volatile int running;
static _Thread_local void *volatile fault_address;
static struct sigaction previous[2];

static void on_fault(int signal, siginfo_t *info, void *context) {
  (void)context;
  if (!running) { /* not ours: the next handler's, when the access is tried again */
    sigaction(signal, &previous[signal == SIGBUS], NULL);
    return;
  }
  fault_address = info->si_addr;
  siglongjmp(jump, 1);
}

static int fresh = -1;

/* Sets the word that fresh memory holds; call it once, before sim_map. Returns 0 where the host refuses. */
int sim_fresh(uint32_t word) {
  fresh = memfd_create("fresh memory", MFD_CLOEXEC);
  if (fresh < 0 || ftruncate(fresh, FRESH)) return 0;
  uint32_t *memory = mmap(NULL, FRESH, PROT_READ | PROT_WRITE, MAP_SHARED, fresh, 0);
  if (memory == MAP_FAILED) return 0;
  for (uint64_t i = 0; i < FRESH / sizeof(word); ++i) memory[i] = word;
  return munmap(memory, FRESH) == 0;
}

/* `bytes` (whole pages) of fresh memory between two pages that nobody may touch; NULL when memory is out. A page costs
 * the host nothing until it is written: a simulated chip may have more memory than the host. */
void *sim_map(uint64_t bytes) {
  char *start = mmap(NULL, bytes + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return NULL;
  for (uint64_t at = 0; at < bytes; at += FRESH) {
    const uint64_t count = bytes - at < FRESH ? bytes - at : FRESH;
    const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    if (mmap(start + GUARD + at, count, PROT_READ | PROT_WRITE, flags, fresh, 0) != MAP_FAILED) continue;
    munmap(start, bytes + 2 * GUARD);
    return NULL;
  }
  return start + GUARD;
}

void sim_unmap(void *pages, uint64_t bytes) { munmap((char *)pages - GUARD, bytes + 2 * GUARD); }

/* Index of the first element that is (same != 0) or is not (same == 0) `word`; `words` where there is none. */
uint64_t sim_find(const uint32_t *memory, uint64_t words, uint32_t word, int same) {
  uint64_t i = 0;
  while (i < words && (memory[i] == word) != (same != 0)) ++i;
  return i;
}

typedef void (*kernel_fn)(void **args, const uint64_t *global, const uint64_t *local);

/* 0, or 1 with the address whose access faulted. */
int sim_run(kernel_fn kernel, void **args, const uint64_t *global, const uint64_t *local, void **fault) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous[0]);
  sigaction(SIGBUS, &action, &previous[1]);
  const int faulted = sigsetjmp(jump, 1);
  if (!faulted) {
    running = 1;
    kernel(args, global, local);
  }
  running = 0;
  sigaction(SIGSEGV, &previous[0], NULL);
  sigaction(SIGBUS, &previous[1], NULL);
  *fault = fault_address;
  return faulted;
}
