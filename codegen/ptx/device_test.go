package ptx

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// deviceShim plays a block of 64 threads with pthreads. Barriers and shuffles are
// real synchronisation, so a thread sanitizer finds a barrier that is missing.
const deviceShim = `
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
enum { THREADS = 64 };
static pthread_barrier_t all, warp[2];
static uint32_t lane[THREADS];
static _Thread_local uint32_t tid;
static uint32_t cta;
void dev_barrier(void) { pthread_barrier_wait(&all); }
uint32_t dev_tid(void) { return tid; }
uint32_t dev_cta(void) { return cta; }
static uint32_t exchange(uint32_t x, uint32_t from) {
  lane[tid] = x;
  pthread_barrier_wait(&warp[tid / 32]);
  uint32_t r = lane[tid / 32 * 32 + from];
  pthread_barrier_wait(&warp[tid / 32]);
  return r;
}
uint32_t dev_shfl_down(uint32_t mask, uint32_t x, uint32_t by, uint32_t clamp) {
  uint32_t l = tid % 32;
  return exchange(x, l + by > 31 ? l : l + by);
}
uint32_t dev_shfl_idx(uint32_t mask, uint32_t x, uint32_t from, uint32_t clamp) { return exchange(x, from); }
typedef struct { void (*run)(char **); int64_t tiles; int params; const int64_t *bytes; } kernel;
extern const kernel kernels[];
extern const int count;
static const kernel *now;
static char **args;
static void *thread(void *id) { tid = (uintptr_t)id; now->run(args); return 0; }
int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  pthread_barrier_init(&all, 0, THREADS);
  pthread_barrier_init(&warp[0], 0, 32);
  pthread_barrier_init(&warp[1], 0, 32);
  for (int k = 0; k < count; k++) {
    now = &kernels[k];
    args = calloc(now->params, sizeof *args);
    for (int p = 0; p < now->params; p++) {
      args[p] = aligned_alloc(64, (now->bytes[p] + 64) / 64 * 64);
      if (fread(args[p], 1, now->bytes[p], in) != (size_t)now->bytes[p]) return 2;
    }
    for (cta = 0; cta < now->tiles; cta++) {
      pthread_t t[THREADS];
      for (uintptr_t i = 0; i < THREADS; i++) if (pthread_create(&t[i], 0, thread, (void *)i)) return 3;
      for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);
    }
    for (int p = 0; p < now->params; p++) {
      fwrite(args[p], 1, now->bytes[p], out);
      free(args[p]);
    }
    free(args);
  }
  return fclose(out) != 0;
}
`

// hostIR turns the device's LLVM IR into the host's: address spaces and the
// kernel's calling convention go, intrinsics of the device become calls.
func hostIR(text string) string {
	if i := strings.Index(text, "\n!nvvm"); i >= 0 {
		text = text[:i]
	}
	r := strings.NewReplacer(" addrspace(1)*", "*", " addrspace(3)*", "*", "addrspace(3) global", "global", "ptx_kernel ", "",
		"nvptx64-nvidia-cuda", "x86_64-pc-linux-gnu", "target datalayout = \"e-i64:64-i128:128-v16:16-v32:32-n16:32:64\"\n", "",
		"@llvm.nvvm.barrier0", "@dev_barrier", "@llvm.nvvm.read.ptx.sreg.tid.x", "@dev_tid", "@llvm.nvvm.read.ptx.sreg.ctaid.x", "@dev_cta",
		"@llvm.nvvm.shfl.sync.down.i32", "@dev_shfl_down", "@llvm.nvvm.shfl.sync.idx.i32", "@dev_shfl_idx", "nounwind {", "nounwind sanitize_thread \"target-cpu\"=\"x86-64-v3\" {")
	return r.Replace(text)
}

// TestBlocksEqualInterpreter runs the device's code, threads and all, on the host
// and compares bits with the interpreter.
func TestBlocksEqualInterpreter(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed")
	}
	ks := append(samples.Programs(), samples.Dropout(1024, 5), samples.Map("erf", 1100, dtype.F32, kern.Erf))
	for seed := range uint64(30) {
		ks = append(ks, samples.Grow(1000+seed))
	}
	r := rand.New(rand.NewPCG(1, 2))
	m := NewModule()
	var table, sizes strings.Builder
	var input, want []byte
	for i, k := range ks {
		name := fmt.Sprintf("kernel%d", i)
		_, err := m.Kernel(k, name)
		require.NoError(t, err)
		fmt.Fprintf(&sizes, "extern void %s();\nstatic const int64_t bytes%d[] = {", name, i)
		var bufs [][]byte
		for _, p := range k.Params {
			b := samples.Fill(r, p.DType, p.Len)
			input = append(input, b...)
			bufs = append(bufs, b)
			fmt.Fprintf(&sizes, "%d,", len(b))
		}
		sizes.WriteString("};\n")
		var args []string
		for j := range k.Params {
			args = append(args, fmt.Sprintf("a[%d]", j))
		}
		fmt.Fprintf(&sizes, "static void run%d(char **a) { %s(%s); }\n", i, name, strings.Join(args, ","))
		fmt.Fprintf(&table, "{run%d, %d, %d, bytes%d},\n", i, k.Tiles, len(k.Params), i)
		require.NoError(t, kern.Run(k, bufs, 0, k.Tiles))
		for _, b := range bufs {
			want = append(want, b...)
		}
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, data, 0o644))
		return path
	}
	ll := file("k.ll", []byte(hostIR(m.LLVM())))
	c := file("main.c", []byte(deviceShim+sizes.String()+"const kernel kernels[] = {\n"+table.String()+"};\nconst int count = sizeof kernels / sizeof *kernels;\n"))
	in, out, exe := file("in", input), filepath.Join(dir, "out"), filepath.Join(dir, "exe")
	for _, mode := range []string{"plain", "sanitized"} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"-O1", "-ffp-contract=off", "-w", "-pthread", "-o", exe, ll, c}
			if mode == "sanitized" {
				args = append(args, "-fsanitize=thread")
			}
			msg, err := exec.Command(clang, args...).CombinedOutput()
			if err != nil && mode == "sanitized" {
				t.Skipf("no thread sanitizer: %s", msg)
			}
			require.NoError(t, err, "%s", msg)
			msg, err = exec.Command(exe, in, out).CombinedOutput()
			if len(msg) > 4000 {
				msg = msg[:4000]
			}
			require.NoError(t, err, "%s", msg)
			got, err := os.ReadFile(out)
			require.NoError(t, err)
			require.Len(t, got, len(want))
			at := 0
			for _, k := range ks {
				for j, p := range k.Params {
					n := int(p.Len * p.DType.Size())
					if err := samples.Same(p.DType, got[at:at+n], want[at:at+n]); err != nil {
						t.Fatalf("%q, parameter %d: %v\n%s", k.Name, j, err, k.Text())
					}
					at += n
				}
			}
		})
	}
}
