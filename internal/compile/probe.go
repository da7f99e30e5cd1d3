package compile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"unsafe"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/remat"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// Probed is what the determinism probe found of one kernel: a function with the sizes of its arguments.
type Probed struct {
	Symbol      string `json:"symbol"`
	Library     string `json:"library,omitempty"` // of a foreign kernel
	Variant     string `json:"variant,omitempty"`
	Layer       string `json:"layer"` // where it was met first
	Op          string `json:"op"`
	Determinism string `json:"determinism"` // declared
	Runs        int    `json:"runs"`
	Distinct    int    `json:"distinct"`          // different results
	Skipped     string `json:"skipped,omitempty"` // why it was not run again
}

// Lies reports whether the kernel is declared to give the same bits every time, and did not.
func (k *Probed) Lies() bool {
	return k.Distinct > 1 && k.Determinism != ir.Tol.String() && k.Determinism != ir.Unknown.String()
}

// Error says what to declare, nil where nothing is wrong.
func (k *Probed) Error() error {
	if !k.Lies() {
		return nil
	}
	e := diag.Errorf("determinism", "kernel %s gave %d different results in %d runs on equal operands, although it is declared %s", k.Symbol, k.Distinct, k.Runs, k.Determinism)
	e.Layer, e.Op = k.Layer, k.Op
	if k.Library != "" || k.Op == "foreign" {
		return e.WithHint("declare it determinism=\"tol\" (or leave it unknown): then it runs once in a step, whatever the budget")
	}
	return e.WithHint("this must not happen: keep the model and report it with the output of reprise doctor")
}

// probeThreads are the numbers of threads that the runs of a kernel take in turn.
func probeThreads() []int { return []int{1, 2, 3, 5, 8, 16} }

// Probe runs every distinct kernel of the program n times on equal operands, in other orders of tiles, cuts and
// numbers of threads each time, and counts the different results. library is the program, compiled as one;
// input gives the data of an input of the step. The operands are those of a first step.
func (p *Program) Probe(library string, n int, seed uint64, input func(v *ir.Value) ([]byte, error)) ([]Probed, error) {
	room := make([]byte, p.Exe.ArenaBytes+exe.Align)
	at := int64(0)
	if r := int64(uintptr(unsafe.Pointer(&room[0])) % exe.Align); r != 0 {
		at = exe.Align - r
	}
	arena := room[at : at+p.Exe.ArenaBytes]
	i, err := runtime.Load(library, runtime.Options{Seed: seed, Threads: 1, Arena: arena})
	if err != nil {
		return nil, err
	}
	defer i.Close()
	pr := &prober{p: p, i: i, arena: arena, n: max(1, n), seed: seed, at: map[string]int{}}
	if err := pr.walk(p.Exe.Init, true); err != nil {
		return nil, err
	}
	for _, v := range p.planned.applied.Func.Body.Params {
		if v.Role() != ir.RoleInput {
			continue
		}
		data, err := input(v)
		if err != nil {
			return nil, err
		}
		if err := i.Bind(v.Name, data); err != nil {
			return nil, err
		}
	}
	if err := i.StepBegin(); err != nil {
		return nil, err
	}
	if err := pr.walk(p.Exe.Step, false); err != nil {
		return nil, err
	}
	pr.unmet(p.Exe.Init, true)
	pr.unmet(p.Exe.Step, false)
	return pr.found, nil
}

// unmet lists the kernels that the walk did not come by.
func (pr *prober) unmet(prog []exe.Inst, init bool) {
	for i := range prog {
		in := &prog[i]
		if in.Kind != exe.Launch {
			continue
		}
		if _, met := pr.at[kernelKey(in)]; !met {
			pr.at[kernelKey(in)] = len(pr.found)
			k := pr.describe(in, init)
			k.Skipped = "the step did not come by: it stands in a branch that was not taken"
			pr.found = append(pr.found, k)
		}
	}
}

// kernelKey tells kernels apart: functions with the sizes of their arguments.
func kernelKey(in *exe.Inst) string {
	key := fmt.Sprintf("%s %s %d", in.Library, in.Symbol, in.Tiles)
	for _, a := range in.Args {
		key += fmt.Sprintf(" %d%t", a.Bytes, a.Write)
	}
	return key
}

type prober struct {
	p     *Program
	i     *runtime.Instance
	arena []byte
	n     int
	seed  uint64
	at    map[string]int // kernel → index in found
	found []Probed
}

// walk goes through a program as the driver does.
func (pr *prober) walk(prog []exe.Inst, init bool) error {
	for pc := 0; pc < len(prog); {
		in := &prog[pc]
		switch in.Kind {
		case exe.Jump:
			pc = in.Targets[0]
		case exe.Print, exe.Check: // nothing that could differ
			pc++
		case exe.BranchIfFalse:
			if pr.bytes(in.Pred)[0] == 0 {
				pc = in.Targets[0]
			} else {
				pc++
			}
		case exe.Case:
			b := pr.bytes(in.Pred)
			k := int64(int32(binary.LittleEndian.Uint32(b)))
			if in.Index == dtype.I64 {
				k = int64(binary.LittleEndian.Uint64(b))
			}
			if k < 0 || k >= int64(len(in.Targets)) {
				k = int64(len(in.Targets)) - 1
			}
			pc = in.Targets[k]
		default:
			if err := pr.launch(in, pc, init); err != nil {
				return err
			}
			pc++
		}
	}
	return nil
}

func (pr *prober) bytes(a exe.Arg) []byte {
	if a.Const {
		return pr.p.Exe.Consts[a.Offset : a.Offset+a.Bytes]
	}
	return pr.arena[a.Offset : a.Offset+a.Bytes]
}

// launch runs one launch, the first time that its kernel is met as often as asked for.
func (pr *prober) launch(in *exe.Inst, pc int, init bool) error {
	key := kernelKey(in)
	if _, seen := pr.at[key]; seen {
		return pr.i.Probe(init, pc, 1, pr.seed)
	}
	pr.at[key] = len(pr.found)
	k := pr.describe(in, init)
	runs := pr.n
	if k.Skipped != "" {
		runs = 1
	}
	before := pr.written(in)
	var first [][]byte
	results := map[[sha256.Size]byte]bool{}
	threads := probeThreads()
	for r := range runs {
		if r > 0 {
			pr.restore(in, before)
		}
		if in.Foreign { // its results are nothing's operands: what they held before must not show
			for _, a := range in.Args {
				if a.Write {
					b := pr.bytes(a)
					for i := range b {
						b[i] = byte(i*37 + r*101)
					}
				}
			}
		}
		if err := pr.i.Probe(init, pc, threads[r%len(threads)], pr.seed+uint64(pc)<<20+uint64(r)); err != nil {
			return err
		}
		after := pr.written(in)
		if r == 0 {
			first = after
		}
		h := sha256.New()
		for _, b := range after {
			h.Write(b)
		}
		results[[sha256.Size]byte(h.Sum(nil))] = true
	}
	pr.restore(in, first)
	k.Runs, k.Distinct = runs, len(results)
	pr.found = append(pr.found, k)
	return nil
}

// written copies what the launch may write.
func (pr *prober) written(in *exe.Inst) [][]byte {
	var out [][]byte
	for _, a := range in.Args {
		if a.Write {
			out = append(out, append([]byte(nil), pr.bytes(a)...))
		}
	}
	return out
}

func (pr *prober) restore(in *exe.Inst, to [][]byte) {
	for _, a := range in.Args {
		if a.Write {
			copy(pr.bytes(a), to[0])
			to = to[1:]
		}
	}
}

// describe says whose kernel it is and what was declared of it.
func (pr *prober) describe(in *exe.Inst, init bool) Probed {
	k := Probed{Symbol: in.Symbol, Library: in.Library, Layer: in.Layer, Op: "copy", Determinism: ir.Exact.String()}
	var op *ir.Op
	switch {
	case in.Run > 0 && !init:
		op = pr.p.Runs[in.Run-1].IR
	case in.Foreign:
		if f := pr.p.planned.module.Func("init"); f != nil {
			f.Body.Walk(func(o *ir.Op) {
				if o.Name() == "foreign" && o.Attrs.Str("symbol") == in.Symbol && o.Attrs.Str("library") == in.Library {
					op = o
				}
			})
		}
	}
	if op == nil {
		return k
	}
	k.Layer, k.Op, k.Determinism = op.Loc.Layer, remat.Kind(op), op.Det().String()
	if op.Name() == "foreign" {
		k.Variant = op.Attrs.Str("variant")
		if e := op.Effect(); e != ir.EffectNone {
			k.Skipped = fmt.Sprintf("its effect (%s) happens once", e)
		}
	}
	return k
}
