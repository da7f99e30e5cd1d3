// Package compile drives a model through passes, planner, layout, code generation and link.
// It is a pure function of its arguments: nothing is kept between calls.
package compile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/debug"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/kern"
	"reprise/ir/ops"
	"reprise/passes"
	"reprise/passes/lower"
	"reprise/passes/policy"
	"reprise/runtime/exe"
)

// Options of a compilation. The zero value compiles for this machine without a limit.
type Options struct {
	Target    string // "cpu", "cpu:native", "cpu:x86-64-v3", "cpu:x86-64-v4"; "" is "cpu"
	Budget    Budget
	TimeLimit time.Duration // for the planner; 0: a fixed number of steps of work
	PlanSteps int64         // for the planner, in its steps of work; 0: by the size of the problem. With fewer than 1,000 layouts and the smallest program are looked for with less work too
	// AllowRecompute opts layers out of pinning (remat.Options); the report warns of them.
	AllowRecompute func(layer string) bool
	// Policy says what is kept for the backward part; nil: the planner decides.
	Policy *policy.Policy
	// Costs are measured times of ops; nil: estimates for all.
	Costs *CostTable
	// AllowUnmatched makes a rule of the policy that matches nothing a warning.
	AllowUnmatched bool
	// LibraryDir is where the program looks for relative libraries of foreign kernels that are not beside
	// it, for programs in temporary places. "": nowhere.
	LibraryDir string
	// NoMinimum skips the search for the smallest budget, which a report then lacks.
	NoMinimum bool
	// Shared makes a library instead of an executable.
	Shared bool
	// Drivers has the drivers that other compilations made; nil: Make compiles its own.
	Drivers *exe.Drivers
	// Objects has what other compilations made, of the same kernels; nil: none.
	Objects *cpu.Objects
	// Keep keeps the texts of the kernels, in Program.KernText and Program.LLVM.
	Keep bool
	// After sees the module after each pass.
	After func(pass string, m *ir.Module)
	// checks times the checks; Plan makes it.
	checks *stopwatch
	// Debug puts faults in, for tests of the checks.
	Debug debug.Options
	// Progress is told what is being done.
	Progress func(stage string)
}

// Program is a compiled model before it is linked.
type Program struct {
	Report  Report
	Exe     *exe.Model
	Objects [][]byte
	// KernText and LLVM are the kernels in the loop language and in LLVM IR, with Options.Keep.
	KernText, LLVM []string
	// Loops are the distinct kernels of the loop language, with Options.Keep.
	Loops      []*kern.Kernel
	Step       *ir.Module // the final program, in the IR
	Runs       []Run      // of the ops of the step, once the code is made
	Proof      *Proof     // what ProveOnce counted
	debug      debug.Options
	checks     *stopwatch
	planned    *planned
	libraryDir string
	*Explanation
}

// Prepare runs the passes before planning on a copy of the model's module.
func Prepare(m *ir.Module, opt Options) (*ir.Module, error) {
	mod := m.Clone()
	if mod.Func("step") == nil {
		return nil, diag.Errorf("model", "module %q has no function @step", m.Name)
	}
	if err := passes.Run(mod, ops.Table(), passes.Options{After: opt.After, Verified: opt.checks.add}); err != nil {
		return nil, err
	}
	// What @init reads is handed over as @step's parameters are.
	step, init := mod.Func("step"), mod.Func("init")
	if init != nil {
		has := step.ParamsByName()
		for _, p := range init.Body.Params {
			if has[p.Name] == nil {
				step.Body.AddParam(p.Name, p.Type, p.Attrs...)
			}
		}
	}
	if err := ownResults(step); err != nil {
		return nil, err
	}
	step.Renumber()
	return mod, opt.checks.time(func() error { return ir.Verify(mod) })
}

// Plan plans a model and lays it out, without code.
func Plan(ctx context.Context, m *frontend.Model, opt Options) (*Program, error) {
	opt.checks = &stopwatch{}
	target, err := cpu.ParseTarget(opt.Target)
	if err != nil {
		return nil, err
	}
	say := opt.Progress
	if say == nil {
		say = func(string) {}
	}
	say("passes")
	grouped, err := Prepare(m.Module, opt)
	if err != nil {
		return nil, err
	}
	say("plan")
	start := time.Now()
	pl := newPlanning(ctx, grouped, opt)
	if pl.init, err = initBytes(grouped); err != nil {
		return nil, err
	}
	all, err := pl.saveAll()
	if err != nil {
		return nil, err
	}
	restricted, said, err := pl.restricts()
	if err != nil {
		return nil, err
	}
	chosen := all
	limit := int64(0)
	switch b := opt.Budget; {
	case b.Bytes > 0:
		limit = b.Bytes
	case b.Percent > 0:
		limit = max(1, int64(float64(all.arena)*b.Percent/100)) // 0 would be no limit
	}
	var least *planned
	if !opt.NoMinimum || opt.Budget.Min {
		if least, err = pl.minimum(all, restricted); err != nil {
			return nil, err
		}
	}
	switch {
	case restricted && pl.alone:
		if chosen, err = pl.obeying(); err != nil {
			return nil, err
		}
		limit = chosen.arena
	case opt.Budget.Min:
		limit = least.arena
		if chosen, err = pl.cheapest(limit, least); err != nil {
			return nil, err
		}
	case limit > 0 && limit < all.arena && least != nil && least.arena <= limit:
		if chosen, err = pl.cheapest(limit, least); err != nil {
			return nil, err
		}
	case limit > 0 && (limit < all.arena || restricted):
		found, inf, err := pl.within(limit, nil)
		if err != nil {
			return nil, err
		}
		if found == nil {
			if least == nil {
				if least, err = pl.minimum(all, restricted); err != nil {
					return nil, err
				}
			}
			found = least
			if found.arena > limit {
				floor, err := pl.floor(inf)
				if err != nil {
					return nil, err
				}
				if floor <= limit { // what --budget min reports may be that of the cheapest program in as many bytes
					if found, err = pl.cheapest(least.arena, least); err != nil {
						return nil, err
					}
				}
				if found.arena > limit {
					return nil, unmeetable(limit, found, floor).compared(pl, restricted)
				}
				found.plan.BudgetBytes = limit
			}
		}
		chosen = found
	}
	if chosen == least && chosen != all {
		if err := pl.certify(chosen, limit); err != nil {
			return nil, err
		}
	}
	if limit == 0 {
		limit = all.arena
	}
	p := &Program{planned: chosen, libraryDir: opt.LibraryDir, debug: opt.Debug, Step: chosen.module}
	if err := breakProgram(chosen, opt.Debug.Faults); err != nil {
		return nil, err
	}
	if !opt.Debug.Unproven {
		if err := opt.checks.time(p.ProveOnce); err != nil {
			return nil, err
		}
	}
	p.checks = opt.checks
	p.Explanation = explain(chosen, limit)
	p.Report = newReport(m, target, limit, chosen, all, least, p.Explanation)
	p.Report.PlanSeconds = time.Since(start).Seconds()
	p.Report.CheckSeconds = p.checks.seconds()
	if !restricted {
		p.Report.Policy = said
	}
	return p, nil
}

// Compile plans a model and makes its code.
func Compile(ctx context.Context, m *frontend.Model, opt Options) (*Program, error) {
	start := time.Now()
	if _, err := exe.Toolchain(); err != nil {
		return nil, err
	}
	p, err := Plan(ctx, m, opt)
	if err != nil {
		return nil, err
	}
	if opt.Progress != nil {
		opt.Progress("code")
	}
	target, err := cpu.ParseTarget(opt.Target)
	if err != nil {
		return nil, err
	}
	unit := cpu.NewUnit(target)
	unit.Objects = opt.Objects
	uk := &unitKernels{u: unit, made: map[any][]kernelLaunch{}, keep: opt.Keep, seen: map[string]bool{}}
	x, err := p.programs(m, target, uk)
	if err != nil {
		return nil, err
	}
	if !p.debug.Unproven {
		if err := p.checks.time(func() error { return sameKernels(x, p.Runs) }); err != nil {
			return nil, err
		}
		if err := p.checks.time(func() error { return p.WrittenOnce(x) }); err != nil {
			return nil, err
		}
	}
	if p.Objects, err = objects(ctx, unit); err != nil {
		return nil, err
	}
	if opt.Keep {
		p.KernText, p.LLVM, p.Loops = uk.text, unit.Modules(), uk.loops
	}
	p.Report.Kernels = countSymbols(x)
	p.Report.Launches = len(x.Step)
	if x.ArenaBytes != p.Report.ArenaBytes {
		return nil, fmt.Errorf("BUG: the programs take %d bytes of arena, %d were promised", x.ArenaBytes, p.Report.ArenaBytes)
	}
	p.Report.CompileSeconds = time.Since(start).Seconds()
	p.Report.CheckSeconds = p.checks.seconds()
	info, err := json.Marshal(p.Report.stable())
	if err != nil {
		return nil, err
	}
	plan, err := json.Marshal(p.Explanation)
	if err != nil {
		return nil, err
	}
	x.Info, x.Plan = info, plan
	p.Exe = x
	return p, nil
}

// programs writes the launches of @init and @step, whose kernels k makes.
func (p *Program) programs(m *frontend.Model, target cpu.Target, k kernels) (*exe.Model, error) {
	em := &emitter{k: k, at: map[*ir.Op]int64{}, own: map[string]place{}, states: map[string]place{}}
	x := &exe.Model{Name: m.Name, Target: target.String(), Features: target.Features(), InputSHA256: m.SHA256, Train: m.Train, LibraryDir: p.libraryDir}
	if m.Train {
		x.Loss = "loss"
	}
	step := p.planned.applied.Func
	offsets, state, resident := residents(step)
	x.ArenaBytes, x.ResidentBytes = p.planned.arena, state
	params := make([]place, len(step.Body.Params))
	for i, v := range step.Body.Params {
		params[i] = place{false, offsets[v.Name], v.Type.Bytes()}
		if v.IsState() {
			em.states[v.Name] = params[i]
		}
		x.Values = append(x.Values, exe.Value{Name: v.Name, Layer: layerOf(v), Role: roleOf(v), DType: v.Type.DType, Shape: v.Type.Shape,
			Offset: offsets[v.Name], Bytes: v.Type.Bytes(), Feed: v.Attrs.Str("feed"), BatchAxes: int(v.Attrs.Int("batch_axes"))})
	}
	if init := p.planned.module.Func("init"); init != nil {
		var err error
		if x.Init, err = em.init(init, offsets, resident, &x.ArenaBytes, p.planned); err != nil {
			return nil, err
		}
	}
	em.prog = nil
	em.runs = newRunTable(p.planned)
	em.faults = newFaulty(p.debug.Faults, p.planned.arena)
	results, err := em.block(step.Body, p.planned.frame, resident, params, p.planned.low)
	if err != nil {
		return nil, err
	}
	if err := em.finish(step, results, x); err != nil {
		return nil, err
	}
	x.Step, x.Ops, p.Runs = em.prog, em.runs.ops(), em.runs.runs
	x.Consts = em.consts
	exe.PlaceWaits(x.Init)
	exe.PlaceWaits(x.Step)
	return x, nil
}

// objects compiles a unit and takes the objects into memory.
func objects(ctx context.Context, u *cpu.Unit) ([][]byte, error) {
	dir, err := os.MkdirTemp("", "reprise-code-")
	if err != nil {
		return nil, diag.Errorf("io", "%v", err).WithHint("set TMPDIR to a directory with space")
	}
	defer os.RemoveAll(dir)
	paths, err := u.Compile(ctx, dir)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(paths))
	for i, path := range paths {
		if out[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// init emits the program that makes the initial state, in place.
func (e *emitter) init(f *ir.Func, offsets map[string]int64, resident int64, arena *int64, p *planned) ([]exe.Inst, error) {
	frame, low, err := layoutInit(f, func(name string) bool { _, ok := e.states[name]; return ok })
	if err != nil {
		return nil, err
	}
	*arena = max(*arena, resident+frame.Size)
	var params []place
	for _, v := range f.Body.Params {
		off, ok := offsets[v.Name]
		if !ok {
			return nil, diag.Errorf("model", "@init reads %q, which @step does not have", v.Name)
		}
		params = append(params, place{false, off, v.Type.Bytes()})
	}
	results, err := e.block(f.Body, frame, resident, params, low)
	if err != nil {
		return nil, err
	}
	for i, name := range f.Results {
		if to := e.states[name]; results[i].konst || results[i].offset != to.offset {
			if err := e.copy(results[i], to, "init"); err != nil {
				return nil, err
			}
		}
	}
	return e.prog, nil
}

func noWorkspace(*ir.Op, *lower.Lowered) int64 { return 0 }

// finish writes back states that were not updated in place, and names the outputs.
func (e *emitter) finish(step *ir.Func, results []place, x *exe.Model) error {
	var from, to []place
	params := step.ParamsByName()
	for i, name := range step.Results {
		p := params[name]
		v := step.Body.Results[i]
		if p != nil && p.IsState() {
			from, to = append(from, results[i]), append(to, e.states[name])
			continue
		}
		if p != nil {
			return diag.Errorf("model", "result %q has the name of a parameter of role %s", name, p.Role()).WithHint("give it another name: only a new value of state has the name of a parameter")
		}
		if results[i].konst {
			return diag.Errorf("model", "result %q is a constant", name).WithHint("leave it out of the results")
		}
		x.Values = append(x.Values, exe.Value{Name: name, Layer: layerOf(v), Role: exe.RoleOutput, DType: v.Type.DType, Shape: v.Type.Shape,
			Offset: results[i].offset, Bytes: v.Type.Bytes()})
	}
	// States that trade places go through memory after everything else.
	fake := &ir.Op{Loc: ir.Loc{Layer: "state"}}
	room := x.ArenaBytes
	if crossing(from, to) {
		for _, p := range from {
			x.ArenaBytes += (p.bytes + exe.Align - 1) / exe.Align * exe.Align
		}
	}
	return e.copies(fake, from, to, room)
}

func layerOf(v *ir.Value) string {
	if l := v.Attrs.Str("layer"); l != "" {
		return l
	}
	if v.Op != nil {
		return v.Op.Loc.Layer
	}
	// Parameters are named LAYER.NAME, optimizer state LAYER.NAME/KIND.
	if i := strings.LastIndexByte(v.Name, '.'); i > 0 {
		return v.Name[:i]
	}
	return v.Name
}

func roleOf(v *ir.Value) exe.Role {
	switch v.Role() {
	case ir.RoleParam:
		return exe.RoleParam
	case ir.RoleOpt:
		return exe.RoleOpt
	case ir.RoleBuffer:
		return exe.RoleBuffer
	case ir.RoleKey:
		return exe.RoleKey
	case ir.RoleStep:
		return exe.RoleStep
	}
	return exe.RoleInput
}

// Make compiles a model and writes it to out: an executable or, with opt.Shared, a library out
// (made to end in .so) and its header. The driver, which is the same for all models, is compiled
// beside the planning, unless opt.Drivers has it.
func Make(ctx context.Context, m *frontend.Model, opt Options, out string) (*Program, error) {
	if _, err := exe.Toolchain(); err != nil {
		return nil, err
	}
	drivers := opt.Drivers
	if drivers == nil {
		drivers = &exe.Drivers{}
		defer drivers.Close()
	}
	g, gctx := errgroup.WithContext(ctx)
	var driver *exe.Driver
	g.Go(func() (err error) {
		defer diag.Recovered(&err)
		driver, err = drivers.Get(gctx, opt.Shared)
		return err
	})
	var p *Program
	g.Go(func() (err error) {
		defer diag.Recovered(&err)
		p, err = Compile(gctx, m, opt)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if opt.Progress != nil {
		opt.Progress("link")
	}
	return p, p.link(ctx, driver, out, opt.Shared)
}

func (p *Program) link(ctx context.Context, driver *exe.Driver, out string, shared bool) error {
	dir, err := os.MkdirTemp("", "reprise-objects-")
	if err != nil {
		return diag.Errorf("io", "%v", err).WithHint("set TMPDIR to a directory with space")
	}
	defer os.RemoveAll(dir)
	var files []string
	for i, o := range p.Objects {
		name := filepath.Join(dir, fmt.Sprintf("k%d.o", i))
		if err := os.WriteFile(name, o, 0o600); err != nil {
			return diag.Errorf("io", "%v", err).WithHint("set TMPDIR to a directory with space")
		}
		files = append(files, name)
	}
	if err := p.checks.time(p.Exe.Validate); err != nil {
		return err
	}
	p.Report.CheckSeconds = p.checks.seconds()
	if err := driver.BuildValid(ctx, p.Exe, files, out); err != nil {
		return err
	}
	path := out
	if shared {
		path = exe.LibraryPath(out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	p.Report.BinaryBytes, p.Report.BinarySHA256 = int64(len(b)), hex.EncodeToString(sum[:])
	return nil
}

// countSymbols is the number of functions that the programs launch.
func countSymbols(x *exe.Model) int {
	seen := map[string]bool{}
	for _, prog := range [][]exe.Inst{x.Init, x.Step} {
		for _, in := range prog {
			if in.Kind == exe.Launch {
				seen[in.Symbol] = true
			}
		}
	}
	return len(seen)
}

// unitKernels adapts a unit of code to the emitter of programs.
type unitKernels struct {
	u    *cpu.Unit
	made map[any][]kernelLaunch // by the kernel, which clones and ops that are alike share
	keep bool
	seen map[string]bool
	text []string

	loops []*kern.Kernel
}

func (k *unitKernels) Launches(l lower.Launch) ([]kernelLaunch, error) {
	if k.keep {
		if text := kernText(l); !k.seen[text] {
			k.seen[text] = true
			k.text = append(k.text, text)
			if l.Kern != nil {
				k.loops = append(k.loops, l.Kern)
			}
		}
	}
	var kernel any
	switch {
	case l.Kern != nil:
		kernel = l.Kern
	case l.Contract != nil:
		kernel = l.Contract
	case l.Attention != nil:
		kernel = l.Attention
	case l.Conv != nil:
		kernel = l.Conv
	}
	if made, ok := k.made[kernel]; ok {
		return made, nil
	}
	var ls []cpu.Launch
	var err error
	switch {
	case l.Kern != nil:
		var one cpu.Launch
		if one, err = k.u.Kernel(l.Kern); err == nil {
			ls = []cpu.Launch{one}
		}
	case l.Contract != nil:
		ls, err = k.u.Contract(l.Contract)
	case l.Attention != nil:
		ls, err = k.u.Attention(l.Attention)
	case l.Conv != nil:
		ls, err = k.u.Conv(l.Conv)
	case l.Foreign != nil:
		return []kernelLaunch{{Symbol: l.Foreign.Symbol, Tiles: l.Foreign.Tiles, Foreign: true, Library: l.Foreign.Library}}, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]kernelLaunch, len(ls))
	for i, x := range ls {
		out[i] = kernelLaunch{Symbol: x.Symbol, Tiles: x.Tiles, Own: x.Own}
	}
	k.made[kernel] = out
	return out, nil
}
