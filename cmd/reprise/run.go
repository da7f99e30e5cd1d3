package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"codeberg.org/sbinet/npyio"
	"github.com/spf13/cobra"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/tensor"
)

func (a *app) runCmd() *cobra.Command {
	var f modelFlags
	var inputs []string
	var output, initFile string
	var interpret bool
	var threads, repeat int
	cmd := &cobra.Command{
		Use:   "run MODEL|BINARY",
		Short: "Run an inference model once, compiled or in the interpreter",
		Example: `  reprise run builtin:mlp --input x=x.npy --output results
  reprise run ./model --input x=x.npy --output results --json
  reprise run model.ir --input x=x.npy --interpret --output results`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			switch {
			case repeat < 1:
				return usageError{fmt.Errorf("run: --repeat %d: want at least 1", repeat)}
			case threads < 0:
				return usageError{fmt.Errorf("run: --threads %d: want 0 (all) or more", threads)}
			}
			if isBinary(list[0]) {
				if err := f.settled("run", "and a compiled program runs as it was made"); err != nil {
					return err
				}
			}
			if interpret {
				return a.interpret(&f, list[0], inputs, output)
			}
			bin := list[0]
			if !isBinary(bin) {
				dir, clean, err := tempDir()
				if err != nil {
					return err
				}
				defer clean()
				opt, err := f.options()
				if err != nil {
					return err
				}
				m, err := f.load(bin)
				if err != nil {
					return err
				}
				opt.NoMinimum = true
				beside(&opt, m)
				bin = filepath.Join(dir, "model")
				p, err := a.make(cmd.Context(), m, opt, bin)
				if err != nil {
					return err
				}
				a.warn(p.Report)
			}
			var list2 []string
			for _, in := range inputs {
				list2 = append(list2, "--input", in)
			}
			if output != "" {
				list2 = append(list2, "--output", output)
			}
			if initFile != "" {
				list2 = append(list2, "--init", initFile)
			}
			if threads > 0 {
				list2 = append(list2, "--threads", fmt.Sprint(threads))
			}
			if repeat > 1 {
				list2 = append(list2, "--repeat", fmt.Sprint(repeat))
			}
			return a.exec(cmd, bin, list2)
		},
	}
	f.register(cmd, false)
	fl := cmd.Flags()
	fl.StringArrayVar(&inputs, "input", nil, "an input, `NAME=FILE.npy`; may be repeated")
	fl.StringVar(&output, "output", "", "directory for the outputs, NAME.npy each")
	fl.StringVar(&initFile, "init", "", "weights, a .safetensors file")
	fl.BoolVar(&interpret, "interpret", false, "run in the reference interpreter (slow)")
	fl.IntVar(&threads, "threads", 0, "threads; 0: all")
	fl.IntVar(&repeat, "repeat", 1, "run so many times and report the time")
	return cmd
}

// exec runs a compiled program with our streams; its status becomes ours.
func (a *app) exec(cmd *cobra.Command, bin string, list []string) error {
	if a.json {
		list = append(list, "--json")
	}
	c := exec.CommandContext(cmd.Context(), abs(bin), list...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.Stdout, c.Stderr = a.out, a.err
	err := c.Run()
	if ee, ok := err.(*exec.ExitError); ok {
		if code := ee.ExitCode(); code >= 0 {
			return exitStatus(code)
		}
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		return diag.Errorf("run", "the program was ended by the system: %v", ee).WithHint("compile it again: its file may be damaged, or the machine short of memory")
	}
	if err != nil {
		return diag.Errorf("run", "%v", err)
	}
	return nil
}

// interpret runs @step (after @init) by the ops' reference semantics.
func (a *app) interpret(f *modelFlags, arg string, inputs []string, output string) error {
	m, err := f.load(arg)
	if err != nil {
		return err
	}
	given := map[string]*tensor.Tensor{}
	for _, in := range inputs {
		name, file, ok := strings.Cut(in, "=")
		if !ok {
			return usageError{fmt.Errorf("--input %q: want NAME=FILE.npy", in)}
		}
		p := m.Module.Func("step").Param(name)
		if p == nil {
			return diag.Errorf("input", "the model has no input %q", name).WithHint("inputs: %s", strings.Join(inputNames(m.Module.Func("step")), ", "))
		}
		t, err := readNpy(file, p)
		if err != nil {
			return err
		}
		given[name] = t
	}
	iopt, unload := compile.InterpOptions(m.Dir)
	defer unload()
	state, err := initialState(m, 0, iopt)
	if err != nil {
		return err
	}
	step := m.Module.Func("step")
	for _, p := range step.Body.Params {
		switch {
		case given[p.Name] != nil:
		case state[p.Name] != nil:
			given[p.Name] = state[p.Name]
		case p.Role() == ir.RoleKey:
			given[p.Name] = tensor.Key(0, 0, 0)
		case p.Role() == ir.RoleStep:
			given[p.Name] = tensor.New(p.Type.DType, p.Type.Shape...)
		default:
			return diag.Errorf("input", "no --input for %q (%s)", p.Name, p.Type)
		}
	}
	files := map[string]string{}
	for _, name := range step.Results {
		file := strings.ReplaceAll(name, "/", "_") + ".npy"
		if other, twice := files[file]; twice && output != "" {
			return diag.Errorf("io", "outputs %q and %q would both be written to %s", other, name, filepath.Join(output, file)).WithHint("give one of them another name in the model")
		}
		files[file] = name
	}
	out, err := interp.RunNamed(step, given, iopt)
	if err != nil {
		return err
	}
	if output == "" {
		return nil
	}
	if err := os.MkdirAll(output, 0o777); err != nil {
		return diag.Unwritable(output, err)
	}
	for _, name := range step.Results {
		if err := writeNpy(filepath.Join(output, strings.ReplaceAll(name, "/", "_")+".npy"), out[name]); err != nil {
			return err
		}
	}
	return nil
}

func inputNames(f *ir.Func) []string {
	var names []string
	for _, p := range f.Body.Params {
		if p.Role() == ir.RoleInput {
			names = append(names, fmt.Sprintf("%s (%s)", p.Name, p.Type))
		}
	}
	return names
}

// initialState runs @init in the interpreter.
func initialState(m *frontend.Model, seed uint64, opt interp.Options) (map[string]*tensor.Tensor, error) {
	init := m.Module.Func("init")
	if init == nil {
		return nil, nil
	}
	in := map[string]*tensor.Tensor{}
	for _, p := range init.Body.Params {
		if p.Type.DType == dtype.Key {
			in[p.Name] = tensor.Key(seed, 0xFFFFFFFF, 0)
		}
	}
	return interp.RunNamed(init, in, opt)
}

func readNpy(file string, p *ir.Value) (*tensor.Tensor, error) {
	fail := func(err error) error {
		e := diag.Errorf("input", "%s: %v", p.Name, err)
		e.File = file
		return e
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fail(err)
	}
	defer f.Close()
	r, err := npyio.NewReader(f)
	if err != nil {
		return nil, fail(err)
	}
	var shape []int64
	for _, d := range r.Header.Descr.Shape {
		shape = append(shape, int64(d))
	}
	if fmt.Sprint(shape) != fmt.Sprint(p.Type.Shape) {
		return nil, fail(fmt.Errorf("the file holds shape %v, the input is %s", shape, p.Type))
	}
	t := tensor.New(p.Type.DType, p.Type.Shape...)
	switch p.Type.DType {
	case dtype.F32:
		var x []float32
		if err := r.Read(&x); err != nil {
			return nil, fail(err)
		}
		copy(t.F32(), x)
	case dtype.F64:
		var x []float64
		if err := r.Read(&x); err != nil {
			return nil, fail(err)
		}
		copy(t.F64(), x)
	case dtype.I32:
		var x []int32
		if err := r.Read(&x); err != nil {
			return nil, fail(err)
		}
		copy(t.I32(), x)
	case dtype.I64:
		var x []int64
		if err := r.Read(&x); err != nil {
			return nil, fail(err)
		}
		copy(t.I64(), x)
	default:
		return nil, fail(fmt.Errorf("the interpreter reads f32, f64, i32 and i64 inputs, not %s", p.Type.DType))
	}
	return t, nil
}

// writeNpy writes an array in NumPy's format, version 1.0.
func writeNpy(file string, t *tensor.Tensor) error {
	descr := map[dtype.Type]string{dtype.Bool: "|b1", dtype.I8: "|i1", dtype.U8: "|u1", dtype.I16: "<i2", dtype.U16: "<u2", dtype.I32: "<i4",
		dtype.U32: "<u4", dtype.I64: "<i8", dtype.U64: "<u8", dtype.F16: "<f2", dtype.BF16: "<u2", dtype.F32: "<f4", dtype.F64: "<f8", dtype.Key: "<u4"}[t.DType]
	shape := ""
	dims := t.Shape
	if t.DType == dtype.Key {
		dims = append(append([]int64{}, dims...), 4)
	}
	for _, d := range dims {
		shape += fmt.Sprintf("%d,", d)
	}
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape)
	for (10+len(head)+1)%64 != 0 {
		head += " "
	}
	head += "\n"
	data := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), byte(len(head)>>8))
	data = append(append(data, head...), t.Data...)
	return writeFile(file, data)
}

func (a *app) trainCmd() *cobra.Command {
	var f modelFlags
	var data, save, resume, initFile string
	var steps, threads int
	var seed uint64
	cmd := &cobra.Command{
		Use:   "train MODEL --data FILE",
		Short: "Compile a training program to a temporary place and run it",
		Example: `  reprise train builtin:gpt --data book.txt --steps 100 --budget 50% --save gpt.safetensors
  reprise train builtin:mlp --steps 20`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			f.train = true
			dir, clean, err := tempDir()
			if err != nil {
				return err
			}
			defer clean()
			bin := filepath.Join(dir, "model")
			f.temporary = true
			quiet := &app{out: discard{}, err: a.err, json: a.json}
			p, err := quiet.build(cmd.Context(), list[0], &f, bin, false, nil)
			if err != nil {
				return err
			}
			a.ruled(p.Report)
			run := []string{"--steps", fmt.Sprint(steps)}
			if cmd.Flags().Changed("seed") { // a resumed run has its own
				run = append(run, "--seed", fmt.Sprint(seed))
			}
			for _, o := range [][2]string{{"--data", data}, {"--save", save}, {"--resume", resume}, {"--init", initFile}} {
				if o[1] != "" {
					run = append(run, o[0], o[1])
				}
			}
			if threads > 0 {
				run = append(run, "--threads", fmt.Sprint(threads))
			}
			return a.exec(cmd, bin, run)
		},
	}
	f.register(cmd, false)
	fl := cmd.Flags()
	fl.StringVar(&data, "data", "", "text, .npy, .npz or .safetensors; without it data is made from the seed")
	fl.IntVar(&steps, "steps", 20, "steps")
	fl.Uint64Var(&seed, "seed", 0, "seed of initial weights, masks and the order of data")
	fl.IntVar(&threads, "threads", 0, "threads; 0: all")
	fl.StringVar(&save, "save", "", "write the state to this .safetensors file at the end")
	fl.StringVar(&resume, "resume", "", "go on from a saved state")
	fl.StringVar(&initFile, "init", "", "start from these weights")
	return cmd
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// ulps is the distance of two f32 values in units in the last place.
func ulps(a, b uint32) uint64 {
	order := func(x uint32) int64 {
		if x>>31 == 1 {
			return -int64(x & math.MaxInt32)
		}
		return int64(x)
	}
	d := order(a) - order(b)
	if d < 0 {
		d = -d
	}
	return uint64(d)
}
