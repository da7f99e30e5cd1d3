package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
)

// modelFlags say which program is made of a MODEL.
type modelFlags struct {
	budget    string
	target    string
	train     bool
	loss      string
	optimizer string
	lr        string
	set       []string
	bind      []string
	timeLimit time.Duration

	policy         string
	rules          []string
	allowUnmatched bool
	costs          string

	given     func(flag string) bool // on the command line
	temporary bool                   // the program lies elsewhere than the libraries of its foreign kernels
}

func (f *modelFlags) register(cmd *cobra.Command, train bool) {
	fl := cmd.Flags()
	f.given = fl.Changed
	fl.StringVar(&f.budget, "budget", "", "bytes of the arena: 512MiB, 60% of what keeping everything takes, min, or fit: what this machine has free; of a graph file a number in its unit, a percentage or min")
	fl.StringVar(&f.target, "target", "cpu", "cpu, cpu:native, cpu:x86-64-v3 or cpu:x86-64-v4")
	if train {
		fl.BoolVar(&f.train, "train", false, "a training step instead of inference")
	}
	fl.StringVar(&f.loss, "loss", "", "loss of a module that has none: "+strings.Join(nn.Losses(), ", "))
	fl.StringVar(&f.optimizer, "optimizer", "", "adamw, sgd or lion")
	fl.StringVar(&f.lr, "lr", "", "greatest learning rate")
	fl.StringArrayVar(&f.set, "set", nil, "a setting of the model or of training, `KEY=VALUE`; may be repeated")
	fl.StringArrayVar(&f.bind, "bind", nil, "shape of an input that the model leaves open, `NAME=4,128`; may be repeated")
	fl.DurationVar(&f.timeLimit, "time-limit", 0, "wall time for the planner (the plan then depends on the machine)")
	f.registerPolicy(cmd)
	_ = cmd.RegisterFlagCompletionFunc("target", cobra.FixedCompletions([]string{"cpu", "cpu:x86-64-v3", "cpu:x86-64-v4"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("optimizer", cobra.FixedCompletions([]string{"adamw", "sgd", "lion"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("budget", cobra.FixedCompletions([]string{"min", "50%", "100%"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = completeModel
}

// completeModel offers the builtin models.
func completeModel(_ *cobra.Command, list []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(list) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, b := range nn.Builtins() {
		names = append(names, "builtin:"+b.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}

// settled reports flags that say how a model is made, given for what is made already.
func (f *modelFlags) settled(command, what string) error {
	for _, name := range []string{"budget", "target", "train", "loss", "optimizer", "lr", "set", "bind", "costs", "time-limit", "policy", "rule", "allow-unmatched"} {
		if f.given(name) {
			return usageError{fmt.Errorf("%s: --%s is for models, %s", command, name, what)}
		}
	}
	return nil
}

func (f *modelFlags) load(arg string) (*frontend.Model, error) {
	o := frontend.Options{Train: f.train, Settings: append([]string{}, f.set...), Loss: f.loss, Bind: map[string][]int64{}}
	if f.optimizer != "" {
		o.Settings = append(o.Settings, "optimizer="+f.optimizer)
	}
	if f.lr != "" {
		o.Settings = append(o.Settings, "lr="+f.lr)
	}
	for _, b := range f.bind {
		name, shape, ok := strings.Cut(b, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--bind %q: want NAME=4,128", b)}
		}
		var dims []int64
		for _, d := range strings.Split(shape, ",") {
			n, err := strconv.ParseInt(strings.TrimSpace(d), 10, 64)
			if err != nil || n < 0 {
				return nil, usageError{fmt.Errorf("--bind %q: %q is not a size", b, d)}
			}
			dims = append(dims, n)
		}
		o.Bind[name] = dims
	}
	return frontend.Load(arg, o)
}

func (f *modelFlags) options() (compile.Options, error) {
	for _, x := range [][2]string{{"budget", f.budget}, {"policy", f.policy}, {"target", f.target}, {"costs", f.costs}} {
		if strings.TrimSpace(x[1]) == "" && f.given != nil && f.given(x[0]) { // as from a variable of the shell that is not set
			return compile.Options{}, usageError{fmt.Errorf("--%s is given and empty", x[0])}
		}
	}
	if f.timeLimit < 0 {
		return compile.Options{}, usageError{fmt.Errorf("--time-limit %v is negative", f.timeLimit)}
	}
	b, err := compile.ParseBudget(f.budget)
	if err != nil {
		return compile.Options{}, usageError{err}
	}
	p, err := f.readPolicy()
	if err != nil {
		return compile.Options{}, err
	}
	costs, err := f.readCosts()
	if err != nil {
		return compile.Options{}, err
	}
	return compile.Options{Target: f.target, Budget: b, TimeLimit: f.timeLimit, Policy: p, AllowUnmatched: f.allowUnmatched, Costs: costs}, nil
}

// beside makes a program in a temporary place find the libraries that lie where its model is.
func beside(opt *compile.Options, m *frontend.Model) {
	if m.Dir != "" {
		opt.LibraryDir = abs(m.Dir)
	}
}

// progress shows stages on a terminal and nothing elsewhere.
func (a *app) progress() (say func(string), done func()) {
	f, ok := a.err.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || a.json {
		return func(string) {}, func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(f), progressbar.OptionSpinnerType(14), progressbar.OptionClearOnFinish(),
		progressbar.OptionEnableColorCodes(os.Getenv("NO_COLOR") == ""))
	return func(s string) { bar.Describe(s); _ = bar.Add(1) }, func() { _ = bar.Finish() }
}

// tempBinary compiles to a temporary place; clean removes it.
func tempDir() (dir string, clean func(), err error) {
	dir, err = os.MkdirTemp("", "reprise-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// isBinary reports whether path is a program that reprise compiled.
func isBinary(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	n, _ := f.Read(magic[:])
	return n == 4 && string(magic[:]) == "\x7fELF"
}

// abs makes a path that can be executed whatever the working directory's place in PATH.
func abs(path string) string {
	if p, err := filepath.Abs(path); err == nil {
		return p
	}
	return path
}
