// Package kernels measures the contraction kernels against PyTorch's, in turns in one
// run: the machine may be shared, so a ratio of two medians taken side by side is worth
// more than either number.
package kernels

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/llir/llvm/ir"

	"reprise/codegen/cpu"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/runtime/native"
)

//go:embed peer.py
var peerSource string

//go:embed src/burst.c
var burstSource string

// Shape is one contraction, C[M,N] = A[M,K]·B[K,N], Batch times. TA, TB: the operand
// lies in memory transposed ([K,M], [N,K]).
type Shape struct {
	Name        string
	M, N, K     int64
	Batch       int64
	TA, TB      bool
	A, B, C     dtype.Type
	WantAtLeast float64 // ratio to the peer that the project promises; 0: none
}

func (s Shape) String() string {
	t := ""
	if s.TA {
		t += " Aᵀ"
	}
	if s.TB {
		t += " Bᵀ"
	}
	b := ""
	if s.Batch > 1 {
		b = fmt.Sprintf("%d× ", s.Batch)
	}
	return fmt.Sprintf("%s%d×%d×%d%s %s", b, s.M, s.N, s.K, t, s.A)
}

// Shapes are the contractions of training and inference steps, M×N×K.
func Shapes() []Shape {
	f := func(m, n, k int64, ta, tb bool, want float64, name string) Shape {
		return Shape{name, m, n, k, 1, ta, tb, dtype.F32, dtype.F32, dtype.F32, want}
	}
	h := func(m, n, k int64, name string) Shape {
		return Shape{name, m, n, k, 1, false, false, dtype.BF16, dtype.BF16, dtype.BF16, 0}
	}
	return []Shape{
		f(1024, 1024, 1024, false, false, 1, "square"),
		f(4096, 1536, 384, false, false, 1, "mlp up"),
		f(4096, 384, 1536, false, false, 1, "mlp down"),
		f(256, 2304, 768, false, false, 1, "gpt2 qkv"),
		f(256, 768, 2304, false, false, 1, "gpt2 qkv, other reading"),
		f(256, 3072, 768, false, false, 0, "gpt2 mlp up"),
		f(256, 768, 3072, false, false, 0, "gpt2 mlp down"),
		f(256, 768, 3072, false, true, 0, "gpt2 mlp dX"),
		f(768, 3072, 256, true, false, 0, "gpt2 mlp dW"),
		f(256, 50257, 768, false, false, 1.3, "logits"),
		f(256, 50257, 768, false, true, 1.3, "logits, tied embedding"),
		f(256, 768, 50257, false, false, 0, "logits dX"),
		f(50257, 768, 256, true, false, 0, "embedding dW"),
		f(384, 1536, 4096, true, false, 0, "mlp dW"),
		f(1536, 384, 4096, true, false, 0, "mlp dW, down"),
		f(4096, 384, 1536, false, true, 0, "mlp dX"),
		f(4096, 384, 384, false, false, 0, "projection"),
		f(4096, 384, 384, false, true, 0, "projection dX"),
		f(384, 384, 4096, true, false, 0, "projection dW"),
		f(4096, 256, 384, false, true, 0, "byte logits"),
		f(768, 128, 128, false, false, 0, "small"),
		f(768, 512, 128, false, false, 0, "small up"),
		f(128, 128, 768, true, false, 0, "small dW"),
		{"batched", 64, 64, 64, 96, false, true, dtype.F32, dtype.F32, dtype.F32, 0},
		f(1, 2304, 768, false, false, 0, "one token"),
		f(1, 50257, 768, false, true, 0, "one token's logits"),
		f(8, 3072, 768, false, false, 0, "eight tokens"),
		f(4096, 4, 384, false, false, 0, "router"),
		{"square f64", 1024, 1024, 1024, 1, false, false, dtype.F64, dtype.F64, dtype.F64, 0},
		h(1024, 1024, 1024, "square bf16"),
		h(4096, 1536, 384, "mlp up bf16"),
		h(256, 50257, 768, "logits bf16"),
	}
}

func (s Shape) contract() *kern.Contract {
	acc := dtype.F32
	if s.A == dtype.F64 {
		acc = dtype.F64
	}
	c := &kern.Contract{Name: "bench", A: s.A, B: s.B, Acc: acc, Out: s.C,
		M: kern.Axis{Size: s.M, StrideA: s.K, StrideC: s.N}, N: kern.Axis{Size: s.N, StrideB: 1, StrideC: 1},
		K:    []kern.Axis{{Size: s.K, StrideA: 1, StrideB: s.N}},
		LenA: s.Batch * s.M * s.K, LenB: s.Batch * s.K * s.N, LenC: s.Batch * s.M * s.N}
	if s.TA {
		c.M.StrideA, c.K[0].StrideA = 1, s.M
	}
	if s.TB {
		c.N.StrideB, c.K[0].StrideB = s.K, 1
	}
	if s.Batch > 1 {
		c.Batch = []kern.Axis{{Size: s.Batch, StrideA: s.M * s.K, StrideB: s.K * s.N, StrideC: s.M * s.N}}
	}
	return c
}

// Options of a run. The zero value measures every shape on one thread and two.
type Options struct {
	Shapes  []Shape
	Threads []int
	Target  cpu.Target
	Python  string        // interpreter of the peer's environment; "": no peer
	Rounds  int           // turns each; 0: 9
	Burst   time.Duration // length of a turn; 0: 60 ms
	Out     io.Writer     // a line for each result; nil: none
}

// Result is one shape at one thread count.
type Result struct {
	Shape     string  `json:"shape"`
	Name      string  `json:"name"`
	Threads   int     `json:"threads"`
	Seconds   float64 `json:"seconds"`      // median of the turns
	Best      float64 `json:"best_seconds"` // fastest turn
	GFlops    float64 `json:"gflops"`
	Peer      float64 `json:"peer_seconds,omitempty"`
	PeerBest  float64 `json:"peer_best_seconds,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`      // peer's median / ours: above 1 we are faster
	BestRatio float64 `json:"best_ratio,omitempty"` // the same of the fastest turns
	Want      float64 `json:"want_at_least,omitempty"`
}

// Report is what a run writes to its JSON file.
type Report struct {
	Format  string   `json:"format"` // reprise.bench.kernels/1
	CPU     string   `json:"cpu"`
	Peer    string   `json:"peer,omitempty"`
	Results []Result `json:"results"`
}

// Run measures and returns the report. It needs clang-19, and for the peer a Python
// with torch (bench/peers/setup.sh makes one).
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Shapes == nil {
		o.Shapes = Shapes()
	}
	if o.Threads == nil {
		o.Threads = []int{1, 2}
	}
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	if o.Burst == 0 {
		o.Burst = 60 * time.Millisecond
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	r := &Report{Format: "reprise.bench.kernels/1", CPU: cpuName()}
	var p *peer
	if o.Python != "" {
		var err error
		if p, err = startPeer(ctx, o.Python); err != nil {
			return nil, err
		}
		defer p.close()
		r.Peer = "torch " + p.version
	}
	for _, s := range o.Shapes {
		k, err := build(ctx, s, o.Target)
		if err != nil {
			return nil, err
		}
		for _, th := range o.Threads {
			res, err := measure(s, k, p, th, o)
			if err != nil {
				k.close()
				return nil, err
			}
			r.Results = append(r.Results, res)
			fmt.Fprintln(o.Out, res.line())
		}
		k.close()
	}
	return r, nil
}

func (r Result) line() string {
	s := fmt.Sprintf("%-28s %-24s %d thread  %9.3f ms %7.1f GFLOP/s", r.Shape, r.Name, r.Threads, r.Seconds*1e3, r.GFlops)
	if r.Peer > 0 {
		s += fmt.Sprintf("   torch %9.3f ms   ratio %.2f (best turns %.2f)", r.Peer*1e3, r.Ratio, r.BestRatio)
	}
	return s
}

// Table is the report as a Markdown table.
func (r *Report) Table() string {
	var b strings.Builder
	against := ""
	if r.Peer != "" {
		against = ", against " + r.Peer
	}
	fmt.Fprintf(&b, "Contraction kernels on %s%s. M×N×K; medians of turns taken alternately (one thread: its CPU time, two: wall time); ratio above 1: reprise is faster.\n\n", r.CPU, against)
	b.WriteString("`reprise bench kernels --peers` measures again.\n\n")
	b.WriteString("| shape | what | threads | reprise ms | GFLOP/s | torch ms | ratio | best turns | promised |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, x := range r.Results {
		want := ""
		if x.Want > 0 {
			want = fmt.Sprintf("≥ %.1f", x.Want)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %.3f | %.1f | %.3f | %.2f | %.2f | %s |\n", x.Shape, x.Name, x.Threads, x.Seconds*1e3, x.GFlops, x.Peer*1e3, x.Ratio, x.BestRatio, want)
	}
	return b.String()
}

// Write stores the report as kernels.json and kernels.md in dir.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	js, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernels.json"), append(js, '\n'), 0o644); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernels.md"), []byte(r.Table()), 0o644); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

func measure(s Shape, k *kernel, p *peer, threads int, o Options) (Result, error) {
	res := Result{Shape: s.String(), Name: s.Name, Threads: threads, Want: s.WantAtLeast}
	w, err := newWorkers(k, threads)
	if err != nil {
		return res, err
	}
	defer w.stop()
	w.run(2)
	var ours, theirs []float64
	for range o.Rounds {
		once := w.run(1)
		n := max(1, int(o.Burst.Seconds()/max(once, 1e-7)))
		ours = append(ours, w.run(n)/float64(n))
		if p != nil {
			t, err := p.time(s, threads, o.Burst.Seconds())
			if err != nil {
				return res, err
			}
			theirs = append(theirs, t)
			// The peer's idle threads spin for some milliseconds before they sleep.
			time.Sleep(30 * time.Millisecond)
		}
	}
	flops := 2 * float64(s.Batch) * float64(s.M) * float64(s.N) * float64(s.K)
	res.Seconds, res.Best = median(ours), slices.Min(ours)
	res.GFlops = flops / res.Seconds / 1e9
	if p != nil {
		res.Peer, res.PeerBest = median(theirs), slices.Min(theirs)
		res.Ratio, res.BestRatio = res.Peer/res.Seconds, res.PeerBest/res.Best
	}
	return res, nil
}

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return s[len(s)/2]
}

// kernel is a compiled contraction with its operands in memory.
type kernel struct {
	dir      string
	lib      uintptr
	launches []launch

	newPool, freePool, run uintptr // functions of burst.c
	mem                    [][]byte
}

type launch struct {
	fn    uintptr
	tiles int64
	args  []unsafe.Pointer
}

func build(ctx context.Context, s Shape, t cpu.Target) (_ *kernel, err error) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		return nil, errors.New("clang-19 not found: apt-get install clang-19")
	}
	m := ir.NewModule()
	c := s.contract()
	ls, err := cpu.EmitContract(m, c, t, "bench")
	if err != nil {
		return nil, err
	}
	k := &kernel{}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	if k.dir, err = os.MkdirTemp("", "reprise-bench-"); err != nil {
		return nil, err
	}
	ll, so := filepath.Join(k.dir, "k.ll"), filepath.Join(k.dir, "k.so")
	if err := os.WriteFile(ll, []byte(m.String()), 0o644); err != nil {
		return nil, err
	}
	command := []string{"-O2", "-fPIC", "-shared", "-pthread", "-Wno-override-module", "-o", so, ll}
	for _, f := range append(native.Sources(true), native.File{Name: "burst.c", Text: burstSource}) {
		name := filepath.Join(k.dir, f.Name)
		if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil {
			return nil, err
		}
		if slices.Contains([]string{"pool.c", "cpu.c", "error.c", "burst.c"}, f.Name) {
			command = append(command, name)
		}
	}
	out, err := exec.CommandContext(ctx, clang, command...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", s, err, out)
	}
	if k.lib, err = purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		return nil, err
	}
	for name, to := range map[string]*uintptr{"burst_pool": &k.newPool, "burst_free": &k.freePool, "burst_run": &k.run} {
		if *to, err = purego.Dlsym(k.lib, name); err != nil {
			return nil, err
		}
	}
	r := rand.New(rand.NewSource(1))
	var args []unsafe.Pointer
	for i, n := range []int64{c.LenA * c.A.Size(), c.LenB * c.B.Size(), c.LenC * c.Out.Size()} {
		buf, err := mapped(n)
		if err != nil {
			return nil, err
		}
		k.mem = append(k.mem, buf)
		fill(r, buf, []dtype.Type{c.A, c.B, c.Out}[i])
		args = append(args, unsafe.Pointer(&buf[0]))
	}
	for _, l := range ls {
		fn, err := purego.Dlsym(k.lib, l.Symbol)
		if err != nil {
			return nil, err
		}
		k.launches = append(k.launches, launch{fn, l.Tiles, args})
	}
	return k, nil
}

// mapped is fresh memory as the runtime's arena has it: one mapping, huge pages where
// the system allows.
func mapped(n int64) ([]byte, error) {
	buf, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("memory for operands: %w", err)
	}
	_ = syscall.Madvise(buf, 14) // MADV_HUGEPAGE; without it only slower
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 0
	}
	return buf, nil
}

// fill writes values of moderate size, no denormals, of the given type.
func fill(r *rand.Rand, buf []byte, d dtype.Type) {
	switch d.Size() {
	case 2:
		for i := 0; i+2 <= len(buf); i += 2 {
			*(*uint16)(unsafe.Pointer(&buf[i])) = uint16(0x3f00 + r.Intn(0x80))
		}
	case 4:
		for i := 0; i+4 <= len(buf); i += 4 {
			*(*float32)(unsafe.Pointer(&buf[i])) = r.Float32() - 0.5
		}
	default:
		for i := 0; i+8 <= len(buf); i += 8 {
			*(*float64)(unsafe.Pointer(&buf[i])) = r.Float64() - 0.5
		}
	}
}

func (k *kernel) close() {
	if k.lib != 0 {
		_ = purego.Dlclose(k.lib)
	}
	for _, m := range k.mem {
		_ = syscall.Munmap(m)
	}
	_ = os.RemoveAll(k.dir)
}

// workers run a kernel's launches on the runtime's own pool (burst.c), as a model does.
type workers struct {
	k        *kernel
	pool     uintptr
	launches []burstLaunch
	scratch  []byte
}

// burstLaunch is burst.c's burst_launch.
type burstLaunch struct {
	fn    uintptr
	args  unsafe.Pointer
	tiles int64
}

func newWorkers(k *kernel, n int) (*workers, error) {
	w := &workers{k: k}
	var err error
	if w.scratch, err = mapped(int64(n) * cpu.ScratchBytes); err != nil {
		return nil, err
	}
	for _, l := range k.launches {
		w.launches = append(w.launches, burstLaunch{l.fn, unsafe.Pointer(&l.args[0]), l.tiles})
	}
	if w.pool, _, _ = purego.SyscallN(k.newPool, uintptr(n)); w.pool == 0 {
		w.stop()
		return nil, fmt.Errorf("%d threads could not be started", n)
	}
	return w, nil
}

// run does times rounds and returns the seconds they took.
func (w *workers) run(times int) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, _, _ := purego.SyscallN(w.k.run, w.pool, uintptr(unsafe.Pointer(&w.launches[0])), uintptr(len(w.launches)), uintptr(times), uintptr(unsafe.Pointer(&w.scratch[0])))
	return float64(ns) * 1e-9
}

func (w *workers) stop() {
	if w.pool != 0 {
		_, _, _ = purego.SyscallN(w.k.freePool, w.pool)
	}
	_ = syscall.Munmap(w.scratch)
}

// peer is a Python process that times PyTorch on request.
type peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	version string
}

func startPeer(ctx context.Context, python string) (*peer, error) {
	cmd := exec.CommandContext(ctx, python, "-c", peerSource)
	for _, v := range os.Environ() {
		// Settings for old OpenBLAS builds slow current libraries.
		if !strings.HasPrefix(v, "OPENBLAS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("peer %s: %w (bench/peers/setup.sh makes it)", python, err)
	}
	p := &peer{cmd: cmd, in: in, out: bufio.NewReader(out)}
	var hello struct {
		Torch string `json:"torch"`
	}
	if err := p.read(&hello); err != nil {
		return nil, fmt.Errorf("peer %s has no torch (bench/peers/setup.sh installs it): %w", python, err)
	}
	p.version = hello.Torch
	return p, nil
}

func (p *peer) read(v any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("peer stopped: %w", err)
	}
	return json.Unmarshal(line, v)
}

func (p *peer) time(s Shape, threads int, seconds float64) (float64, error) {
	q, err := json.Marshal(map[string]any{"m": s.M, "n": s.N, "k": s.K, "batch": s.Batch, "ta": s.TA, "tb": s.TB,
		"dtype": s.A.String(), "threads": threads, "seconds": seconds})
	if err != nil {
		return 0, err
	}
	if _, err := p.in.Write(append(q, '\n')); err != nil {
		return 0, fmt.Errorf("peer stopped: %w", err)
	}
	var r struct {
		Seconds float64 `json:"seconds"`
	}
	if err := p.read(&r); err != nil {
		return 0, err
	}
	return r.Seconds, nil
}

func (p *peer) close() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

func cpuName() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(name), ":"))
		}
	}
	return "unknown CPU"
}
