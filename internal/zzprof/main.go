package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"syscall"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/ir/kern"
	"reprise/passes/lower"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func cpuTime() time.Duration {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 3, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

func main() {
	m, err := frontend.Load("builtin:"+os.Args[1], frontend.Options{Train: true})
	must(err)
	p, err := compile.Plan(context.Background(), m, compile.Options{})
	must(err)
	type item struct {
		k     *kern.Kernel
		count int
		op    string
		sym   string
		best  time.Duration
		bytes int64
	}
	target, _ := cpu.ParseTarget("cpu")
	if len(os.Args) > 2 {
		target, err = cpu.ParseTarget(os.Args[2])
		must(err)
	}
	u := cpu.NewUnit(target)
	items := map[string]*item{}
	uc, ua := cpu.NewUnit(target), cpu.NewUnit(target)
	nc, na := 0, 0
	start := time.Now()
	var walk func(b *ir.Block)
	walk = func(b *ir.Block) {
		for _, op := range b.Ops {
			if lower.IsView(op) || lower.IsConstant(op) {
				continue
			}
			l, err := lower.Op(op)
			if err != nil {
				fmt.Println("skip", op.Name(), err)
				continue
			}
			for _, x := range l.Launches {
				if x.Contract != nil {
					_, err := uc.Contract(x.Contract)
					must(err)
					nc++
				}
				if x.Attention != nil {
					_, err := ua.Attention(x.Attention)
					must(err)
					na++
				}
				if x.Kern == nil {
					continue
				}
				la, err := u.Kernel(x.Kern)
				must(err)
				it := items[la.Symbol]
				if it == nil {
					it = &item{k: x.Kern, op: op.Name(), sym: la.Symbol, best: math.MaxInt64}
					items[la.Symbol] = it
				}
				it.count++
			}
		}
	}
	walk(p.Step.Func("step").Body)
	fmt.Println("emit", time.Since(start), len(items), "kernels")
	dir, _ := os.MkdirTemp("", "prof")
	defer os.RemoveAll(dir)
	start = time.Now()
	objs, err := u.Compile(context.Background(), dir)
	must(err)
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r)
	fmt.Println("clang wall", time.Since(start), "user", time.Duration(r.Utime.Nano()), "modules", len(objs))
	for i, x := range []*cpu.Unit{uc, ua} {
		d2 := filepath.Join(dir, fmt.Sprint(i))
		os.Mkdir(d2, 0o755)
		before := r.Utime.Nano()
		start = time.Now()
		o, err := x.Compile(context.Background(), d2)
		must(err)
		syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r)
		fmt.Println([]string{"contract", "attention"}[i], nc, na, "wall", time.Since(start), "user", time.Duration(r.Utime.Nano()-before), "modules", len(o))
	}
	so := filepath.Join(dir, "x.so")
	out, err := exec.Command("clang-19", append([]string{"-shared", "-o", so}, objs...)...).CombinedOutput()
	if err != nil {
		panic(string(out))
	}
	lib, err := purego.Dlopen(so, purego.RTLD_NOW)
	must(err)
	runtime.LockOSThread()
	var list []*item
	for _, it := range items {
		list = append(list, it)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].sym < list[j].sym })
	scratch := make([]byte, 1<<20+64)
	for _, it := range list {
		var f func(a unsafe.Pointer, lo, hi int64, s unsafe.Pointer)
		purego.RegisterLibFunc(&f, lib, it.sym)
		var args []unsafe.Pointer
		for _, q := range it.k.Params {
			buf := make([]byte, q.Len*q.DType.Size()+64)
			if q.DType.String() == "f32" {
				for i := int64(0); i < q.Len; i++ {
					*(*float32)(unsafe.Pointer(&buf[4*i])) = float32(i%97)*0.01 - 0.4
				}
			}
			it.bytes += q.Len * q.DType.Size()
			args = append(args, unsafe.Pointer(&buf[0]))
		}
		args = append(args, nil)
		for range 4 {
			t := cpuTime()
			f(unsafe.Pointer(&args[0]), 0, it.k.Tiles, unsafe.Pointer(&scratch[0]))
			it.best = min(it.best, cpuTime()-t)
		}
	}
	sort.Slice(list, func(i, j int) bool {
		return list[i].best*time.Duration(list[i].count) > list[j].best*time.Duration(list[j].count)
	})
	var total time.Duration
	for _, it := range list {
		total += it.best * time.Duration(it.count)
		fmt.Printf("%10v x%-3d = %10v  %6.1f GB/s tiles %-7d %s (%s)\n", it.best, it.count, it.best*time.Duration(it.count), float64(it.bytes)/float64(it.best.Nanoseconds()), it.k.Tiles, it.sym, it.op)
	}
	fmt.Println("total", total)
	if len(os.Args) > 3 {
		for _, it := range list {
			if len(os.Args[3]) > 0 && (os.Args[3] == "all" || it.sym == os.Args[3]) {
				fmt.Println(it.sym)
				fmt.Println(it.k.Text())
			}
		}
	}
}
