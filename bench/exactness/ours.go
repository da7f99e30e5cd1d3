package exactness

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/runtime"
	"reprise/runtime/exe"
)

const (
	threads = 2
	steps   = 5
	seed    = 11
)

// The models, of the kinds that the peers' rows run.
const (
	gpt     = "builtin:gpt,layers=2,d=32,heads=2,seq=24,batch=2,vocab=40,dropout=0.2"
	lstm    = "builtin:lstm,batch=3,seq=5,d=24,vocab=30"
	cnn     = "builtin:cnn,size=12,width=4,batch=3"
	resnet  = "builtin:resnet,size=8,width=4,blocks=1,batch=3"
	qwen    = "builtin:qwen,layers=2,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=40"
	mixture = "builtin:llama4,layers=2,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=40,experts=4,hidden=24"
)

// lab compiles programs and runs them.
type lab struct {
	ctx     context.Context
	dir     string
	drivers exe.Drivers
	objects *cpu.Objects
	made    map[string]*program // by model, budget
	count   int
}

type program struct {
	path  string
	model *frontend.Model
	*compile.Program
}

func newLab(ctx context.Context) (*lab, error) {
	dir, err := os.MkdirTemp("", "reprise-exactness-")
	if err != nil {
		return nil, err
	}
	return &lab{ctx: ctx, dir: dir, objects: &cpu.Objects{}, made: map[string]*program{}}, nil
}

func (l *lab) close() {
	_ = l.drivers.Close()
	_ = os.RemoveAll(l.dir)
}

// program compiles a training step at a budget; "" keeps everything.
func (l *lab) program(spec, budget string) (*program, error) {
	if p := l.made[spec+" "+budget]; p != nil {
		return p, nil
	}
	b, err := compile.ParseBudget(budget)
	if err != nil {
		return nil, err
	}
	m, err := frontend.Load(spec, frontend.Options{Train: true})
	if err != nil {
		return nil, err
	}
	l.count++
	p := &program{path: filepath.Join(l.dir, fmt.Sprintf("m%d.so", l.count)), model: m}
	o := compile.Options{Budget: b, NoMinimum: budget != "min", Shared: true, Drivers: &l.drivers, Objects: l.objects}
	if p.Program, err = compile.Make(l.ctx, m, o, p.path); err != nil {
		return nil, fmt.Errorf("%s at %s: %w", spec, budget, err)
	}
	l.made[spec+" "+budget] = p
	return p, nil
}

// run gives the hash of every result of a program after each step, by name and step, and the last bytes of each.
func (p *program) run(threads int) (hashes map[string]string, last map[string][]byte, err error) {
	i, err := runtime.Load(p.path, runtime.Options{Seed: seed, Threads: threads})
	if err != nil {
		return nil, nil, err
	}
	defer i.Close()
	hashes, last = map[string]string{}, map[string][]byte{}
	step := p.model.Module.Func("step")
	for s := range steps {
		for _, v := range step.Body.Params {
			if v.Role() != ir.RoleInput {
				continue
			}
			x, err := compile.SyntheticInput(v, 5, s)
			if err != nil {
				return nil, nil, err
			}
			if err := i.Bind(v.Name, x.Data); err != nil {
				return nil, nil, err
			}
		}
		if err := i.Step(); err != nil {
			return nil, nil, err
		}
		for _, name := range step.Results {
			b, err := i.Read(name)
			if err != nil {
				return nil, nil, err
			}
			hashes[fmt.Sprintf("%s after step %d", name, s+1)] = fmt.Sprintf("%x", sha256.Sum256(b))
			last[name] = slices.Clone(b)
		}
	}
	return hashes, last, nil
}

// difference counts results whose bits differ.
type difference struct {
	Differ int      `json:"differ"`
	Of     int      `json:"of"`
	Names  []string `json:"names,omitempty"`
}

func differ(a, b map[string]string) difference {
	d := difference{Of: len(a)}
	for name, h := range a {
		if b[name] != h {
			d.Differ++
			d.Names = append(d.Names, name)
		}
	}
	slices.Sort(d.Names)
	return d
}

func (d difference) String() string {
	if d.Differ == 0 {
		return fmt.Sprintf("equal (%d)", d.Of)
	}
	return fmt.Sprintf("%d of %d differ", d.Differ, d.Of)
}

// against compares a model at the smallest budget, and at one between, with itself keeping everything: loss, parameters, moments of the
// gradients and all other state after each of five steps.
func (l *lab) against(specs ...string) (string, any, error) {
	measured := map[string]difference{}
	var says []string
	for _, spec := range specs {
		all, err := l.program(spec, "")
		if err != nil {
			return "", nil, err
		}
		want, _, err := all.run(threads)
		if err != nil {
			return "", nil, err
		}
		least, err := l.program(spec, "min")
		if err != nil {
			return "", nil, err
		}
		half := fmt.Sprintf("%dB", (all.Report.ArenaBytes+least.Report.ArenaBytes)/2)
		var parts []string
		for _, b := range []string{half, "min"} {
			p, err := l.program(spec, b)
			if err != nil {
				return "", nil, err
			}
			got, _, err := p.run(threads)
			if err != nil {
				return "", nil, err
			}
			d := differ(want, got)
			measured[spec+" at "+b] = d
			parts = append(parts, fmt.Sprintf("at %.0f %% %s, %d ops again", 100*float64(p.Report.ArenaBytes)/float64(all.Report.ArenaBytes), d, p.Report.Recomputed))
		}
		says = append(says, kind(spec)+" "+strings.Join(parts, ", "))
	}
	return strings.Join(says, "; "), measured, nil
}

func kind(spec string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "builtin:"), ",")
	return name
}

// questions are the rows of the table.
func questions() []question {
	return []question{
		{"checkpoint", "gradients, parameters and state under checkpointing or at a budget", func(l *lab) (string, any, error) { return l.against(gpt, lstm, cnn) }},
		{"state", "batch-norm statistics and token counters change once", counters},
		{"rng", "dropout without keeping generator state", func(l *lab) (string, any, error) {
			s, m, err := l.against(gpt)
			return "no flag to get wrong: " + s, m, err
		}},
		{"budget-dropout", "a memory budget below everything, with dropout", func(l *lab) (string, any, error) { return l.against(gpt, qwen) }},
		{"budget-peak", "what a smaller budget does to the peak", peaks},
		{"bf16", "bf16, compiled, with recomputation", func(l *lab) (string, any, error) { return l.against(qwen) }},
		{"threads", "1 against 2 threads", manyThreads},
		{"repeat", "run to run, 2 threads", repeated},
		{"split", "a data-dependent split and its recomputation", split},
		{"wrapped", "a model beside its rematerialised twin of one description", twin},
	}
}

// counters: buffers at the budgets, and counters that can be checked against what was fed.
func counters(l *lab) (string, any, error) {
	type counted struct {
		Buffers difference `json:"buffers"`
		Counts  []string   `json:"counts"`
	}
	measured := map[string]counted{}
	var says []string
	for _, spec := range []string{resnet, mixture} {
		all, err := l.program(spec, "")
		if err != nil {
			return "", nil, err
		}
		_, want, err := all.run(threads)
		if err != nil {
			return "", nil, err
		}
		p, err := l.program(spec, "min")
		if err != nil {
			return "", nil, err
		}
		_, got, err := p.run(threads)
		if err != nil {
			return "", nil, err
		}
		var c counted
		for _, v := range all.model.Module.Func("step").Body.Params {
			if v.Role() != ir.RoleBuffer {
				continue
			}
			c.Buffers.Of++
			if string(want[v.Name]) != string(got[v.Name]) {
				c.Buffers.Differ++
				c.Buffers.Names = append(c.Buffers.Names, v.Name)
			}
			if n, ok := sum(v, got[v.Name]); ok {
				c.Counts = append(c.Counts, fmt.Sprintf("%s: %d", v.Name, n))
			}
		}
		measured[spec] = c
		says = append(says, fmt.Sprintf("%s: buffers %s with %d ops run again, %s after %d steps", kind(spec), c.Buffers, p.Report.Recomputed, strings.Join(c.Counts[:min(1, len(c.Counts))], ""), steps))
	}
	return strings.Join(says, "; "), measured, nil
}

// sum adds up a counter, a buffer of integers.
func sum(v *ir.Value, data []byte) (int64, bool) {
	if !v.Type.DType.IsInt() {
		return 0, false
	}
	n, size := int64(0), int(v.Type.DType.Size())
	for i := 0; i+size <= len(data); i += size {
		switch size {
		case 4:
			n += int64(int32(binary.LittleEndian.Uint32(data[i:])))
		case 8:
			n += int64(binary.LittleEndian.Uint64(data[i:]))
		default:
			return 0, false
		}
	}
	return n, true
}

// peaks: what is promised and allocated at budgets between everything and the smallest.
func peaks(l *lab) (string, any, error) {
	all, err := l.program(gpt, "")
	if err != nil {
		return "", nil, err
	}
	least, err := l.program(gpt, "min")
	if err != nil {
		return "", nil, err
	}
	type point struct {
		Budget   int64 `json:"budget_bytes"`
		Promised int64 `json:"promised_peak_bytes"`
		Arena    int64 `json:"arena_bytes"`
		Again    int   `json:"recomputed"`
	}
	var points []point
	var text []string
	lo, hi := least.Report.ArenaBytes, all.Report.ArenaBytes
	for k := range int64(5) {
		b := hi - (hi-lo)*k/4
		p, err := l.program(gpt, fmt.Sprintf("%dB", b))
		if err != nil {
			return "", nil, err
		}
		i, err := runtime.Load(p.path, runtime.Options{Seed: seed, Threads: threads})
		if err != nil {
			return "", nil, err
		}
		arena := i.Description().ArenaBytes
		if err := i.Close(); err != nil {
			return "", nil, err
		}
		points = append(points, point{b, p.Report.PromisedPeakBytes, arena, p.Report.Recomputed})
		text = append(text, fmt.Sprintf("%.0f", float64(arena)/1024))
		if arena > b || arena != p.Report.PromisedPeakBytes {
			return "", nil, fmt.Errorf("%d bytes allocated, %d promised, for a budget of %d", arena, p.Report.PromisedPeakBytes, b)
		}
	}
	return fmt.Sprintf("arena in KiB at five budgets in bytes from everything to the smallest: %s; each is what was promised, and within its budget", strings.Join(text, " · ")), points, nil
}

func manyThreads(l *lab) (string, any, error) {
	measured := map[string]difference{}
	var says []string
	for _, spec := range []string{gpt, cnn, lstm, mixture} {
		p, err := l.program(spec, "min")
		if err != nil {
			return "", nil, err
		}
		one, _, err := p.run(1)
		if err != nil {
			return "", nil, err
		}
		two, _, err := p.run(2)
		if err != nil {
			return "", nil, err
		}
		d := differ(one, two)
		measured[spec] = d
		says = append(says, kind(spec)+" "+d.String())
	}
	return strings.Join(says, "; "), measured, nil
}

func repeated(l *lab) (string, any, error) {
	p, err := l.program(gpt, "min")
	if err != nil {
		return "", nil, err
	}
	first, _, err := p.run(threads)
	if err != nil {
		return "", nil, err
	}
	worst := difference{Of: len(first)}
	for range 20 {
		again, _, err := p.run(threads)
		if err != nil {
			return "", nil, err
		}
		if d := differ(first, again); d.Differ > worst.Differ {
			worst = d
		}
	}
	return fmt.Sprintf("20 runs, the worst: %s", worst), worst, nil
}

// split: the router's decisions run once, proven on the final program, and the rest follows.
func split(l *lab) (string, any, error) {
	says, measured, err := l.against(mixture)
	if err != nil {
		return "", nil, err
	}
	p, err := l.program(mixture, "min")
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("%d decisions pinned, %d run twice (proven on the final program); %s", p.Report.Pinned, p.Proof.Twice, says), measured, nil
}

// twin: from one description, compiled before and after its rematerialised twin, comes one file.
func twin(l *lab) (string, any, error) {
	m, err := frontend.Load(gpt, frontend.Options{Train: true})
	if err != nil {
		return "", nil, err
	}
	text := m.Module.String()
	var sums []string
	for k, b := range []compile.Budget{{}, {Min: true}, {}} {
		o := compile.Options{Budget: b, NoMinimum: !b.Min, Shared: true, Drivers: &l.drivers, Objects: l.objects}
		p, err := compile.Make(l.ctx, m, o, filepath.Join(l.dir, fmt.Sprintf("twin%d.so", k)))
		if err != nil {
			return "", nil, err
		}
		sums = append(sums, p.Report.BinarySHA256)
	}
	if sums[0] != sums[2] || text != m.Module.String() {
		return "the plain program or the description differ after the twin was compiled", sums, nil
	}
	return "the plain program is the same file before and after; the description is unchanged", sums, nil
}
