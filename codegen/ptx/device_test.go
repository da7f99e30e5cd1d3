package ptx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
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

// onHost runs device code of kernels, block by block and with a thread for each of the device's, on the host, with
// the given flags for clang, and returns what their buffers then hold. skip, if not empty, is why a compiler that
// does not take the flags is no failure.
func onHost(t *testing.T, ks []*kern.Kernel, bufs [][][]byte, skip string, flags ...string) [][][]byte {
	t.Helper()
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed")
	}
	m := NewModule()
	var table, sizes strings.Builder
	var input []byte
	for i, k := range ks {
		name := fmt.Sprintf("kernel%d", i)
		_, err := m.Kernel(k, name)
		require.NoError(t, err)
		fmt.Fprintf(&sizes, "extern void %s();\nstatic const int64_t bytes%d[] = {", name, i)
		var args []string
		for j, b := range bufs[i] {
			input = append(input, b...)
			fmt.Fprintf(&sizes, "%d,", len(b))
			args = append(args, fmt.Sprintf("a[%d]", j))
		}
		sizes.WriteString("};\n")
		fmt.Fprintf(&sizes, "static void run%d(char **a) { %s(%s); }\n", i, name, strings.Join(args, ","))
		fmt.Fprintf(&table, "{run%d, %d, %d, bytes%d},\n", i, k.Tiles, len(k.Params), i)
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
	msg, err := exec.Command(clang, append(flags, "-O1", "-ffp-contract=off", "-w", "-pthread", "-o", exe, ll, c)...).CombinedOutput()
	if err != nil && skip != "" {
		t.Skipf("%s: %s", skip, msg)
	}
	require.NoError(t, err, "%s", msg)
	msg, err = exec.Command(exe, in, out).CombinedOutput()
	if len(msg) > 4000 {
		msg = msg[:4000]
	}
	require.NoError(t, err, "%s", msg)
	data, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Len(t, data, len(input))
	got := make([][][]byte, len(ks))
	for i := range ks {
		for _, b := range bufs[i] {
			got[i] = append(got[i], data[:len(b)])
			data = data[len(b):]
		}
	}
	return got
}

// TestBlocksEqualInterpreter runs the device's code, threads and all, on the host
// and compares bits with the interpreter.
func TestBlocksEqualInterpreter(t *testing.T) {
	ks := append(samples.Programs(), samples.Dropout(1024, 5), samples.Map("erf", 1100, dtype.F32, kern.Erf))
	for seed := range uint64(30) {
		ks = append(ks, samples.Grow(1000+seed))
	}
	r := rand.New(rand.NewPCG(1, 2))
	var input, want [][][]byte
	for _, k := range ks {
		var in, out [][]byte
		for _, p := range k.Params {
			b := samples.Fill(r, p.DType, p.Len)
			in, out = append(in, b), append(out, bytes.Clone(b))
		}
		require.NoError(t, kern.Run(k, out, 0, k.Tiles))
		input, want = append(input, in), append(want, out)
	}
	check := func(t *testing.T, got [][][]byte) {
		for i, k := range ks {
			for j, p := range k.Params {
				if err := samples.Same(p.DType, got[i][j], want[i][j]); err != nil {
					t.Fatalf("%q, parameter %d: %v\n%s", k.Name, j, err, k.Text())
				}
			}
		}
	}
	t.Run("plain", func(t *testing.T) { check(t, onHost(t, ks, input, "")) })
	t.Run("sanitized", func(t *testing.T) { check(t, onHost(t, ks, input, "no thread sanitizer", "-fsanitize=thread")) })
}

// TestP008: random bits recomputed from one key were others where the compiler had cut the recomputation differently
// (jax-ml/jax#21046). The device's code draws the mask of the definition, which the CPU's draws too, in whatever
// vectors (codegen/cpu), threads, fusion and budget (internal/reports).
func TestP008(t *testing.T) {
	const n, id = 4 * 1024, 7
	key := [4]uint32{11, 3, 5, 2}
	bufs := [][]byte{make([]byte, 16), make([]byte, 4*n), make([]byte, 4*n)}
	for i, w := range key {
		binary.LittleEndian.PutUint32(bufs[0][4*i:], w)
	}
	for i := range n {
		binary.LittleEndian.PutUint32(bufs[1][4*i:], math.Float32bits(1))
	}
	y := onHost(t, []*kern.Kernel{samples.Dropout(n, id)}, [][][]byte{bufs}, "")[0][2]
	for i, keep := range samples.Kept(key, id, n) {
		got := math.Float32frombits(binary.LittleEndian.Uint32(y[4*i:]))
		require.Equal(t, keep, got != 0, "element %d", i)
		require.True(t, got == 0 || got == 1.25)
	}
}
