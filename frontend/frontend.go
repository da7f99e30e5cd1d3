// Package frontend turns what a person names as MODEL into a module: a builtin model or
// a file in the text form. What it is, is told by content first and by name second.
package frontend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
)

// Options say what is wanted of a model.
type Options struct {
	Train bool // a training step; otherwise what the model itself is, for builtins inference

	// Settings are training options as key=value (optimizer=adamw, lr=3e-4 …). For a
	// builtin model they are added to its own, and override them.
	Settings []string

	// Loss is what a module without a loss is trained by: a name of nn.Losses, or NAME:RESULT.
	Loss string

	Bind map[string][]int64 // shapes of named inputs that a model leaves open
}

// Model is a resolved MODEL.
type Model struct {
	Name   string // for messages and default file names
	Kind   string // "builtin" or "ir"
	Spec   string // canonical name, e.g. "builtin:gpt,layers=4" or the path
	Dir    string // directory of the file, "" of a builtin: where relative libraries of foreign kernels are
	Train  bool   // @step trains: it has a loss and gives parameters new values
	Module *ir.Module
	SHA256 string // of the module's text form, hex
}

// Load resolves MODEL. Errors are *diag.Error.
func Load(arg string, o Options) (*Model, error) {
	if spec, ok := strings.CutPrefix(arg, "builtin:"); ok {
		return loadBuiltin(spec, o)
	}
	info, err := os.Stat(arg)
	if err != nil {
		return nil, missing(arg, err)
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(arg, "config.json")); err == nil {
			return nil, unsupported(arg, "a Hugging Face model directory")
		}
		e := diag.Errorf("model", "it is a directory without config.json").WithHint("%s", supported)
		e.File = arg
		return nil, e
	}
	data, err := os.ReadFile(arg)
	if err != nil {
		return nil, diag.Unreadable(arg, err)
	}
	what := sniff(arg, data)
	if what != textForm {
		return nil, unsupported(arg, what)
	}
	m, err := ir.Parse(ops.Table(), arg, string(data))
	if err != nil {
		return nil, diag.As(err)
	}
	if m.Attrs.Str("stage") != "" {
		return nil, diag.Errorf("model", "%s is a module of stage %q: it was planned or lowered before", arg, m.Attrs.Str("stage")).
			WithHint("compile the module that it was made from")
	}
	if err := knownRoles(m, arg); err != nil {
		return nil, err
	}
	if err := initFits(m, arg); err != nil {
		return nil, err
	}
	if o.Loss != "" {
		if err := nn.AddLoss(m, o.Loss); err != nil {
			return nil, err
		}
	}
	if o.Train && !trains(m) {
		r, err := nn.ParseRecipe(o.Settings)
		if err == nil {
			err = nn.AddTraining(m, r)
		}
		if err != nil {
			return nil, err
		}
	} else if len(o.Settings) > 0 {
		return nil, diag.Errorf("option", "%s: training options (%s) have nowhere to go: the step is finished", arg, strings.Join(o.Settings, ", ")).
			WithHint("leave them out, or give --train with a module whose @step has %%loss and no new parameters")
	}
	base := filepath.Base(arg)
	return finish(&Model{Name: strings.TrimSuffix(base, filepath.Ext(base)), Kind: "ir", Spec: arg, Dir: filepath.Dir(arg), Module: m}, o)
}

func loadBuiltin(spec string, o Options) (*Model, error) {
	u, err := nn.ParseBuiltin(override(spec, o.Settings))
	if err != nil {
		return nil, err
	}
	if o.Loss != "" && o.Loss != "cross_entropy" {
		return nil, diag.Errorf("option", "loss %q: builtin:%s is trained by cross_entropy", o.Loss, u.Builtin.Name).
			WithHint("--loss is for modules that have none of their own")
	}
	m := &Model{Name: u.Builtin.Name, Kind: "builtin", Spec: "builtin:" + u.Spec}
	if o.Train {
		m.Module, err = u.Train()
	} else {
		m.Module, err = u.Infer()
	}
	if err != nil {
		return nil, err
	}
	return finish(m, o)
}

// override puts settings in place of those of the same key in a builtin's name.
func override(spec string, settings []string) string {
	parts := strings.Split(spec, ",")
	for _, set := range settings {
		key, _, _ := strings.Cut(set, "=")
		parts = slices.DeleteFunc(parts, func(p string) bool { return strings.HasPrefix(p, key+"=") })
	}
	return strings.Join(append(parts, settings...), ",")
}

func finish(m *Model, o Options) (*Model, error) {
	if len(o.Bind) > 0 {
		return nil, diag.Errorf("option", "%s has no open sizes to bind: its shapes are fixed", m.Spec).WithHint("leave --bind out; sizes of a builtin are its options, as in builtin:mlp,batch=4")
	}
	m.Train = trains(m.Module)
	sum := sha256.Sum256([]byte(m.Module.String()))
	m.SHA256 = hex.EncodeToString(sum[:])
	return m, nil
}

// knownRoles reports a parameter whose role is none: misspelt state would pass for an input.
func knownRoles(m *ir.Module, file string) error {
	roles := []string{ir.RoleParam, ir.RoleOpt, ir.RoleBuffer, ir.RoleInput, ir.RoleKey, ir.RoleStep}
	for _, f := range m.Funcs {
		if f.Name != "step" && f.Name != "init" {
			continue
		}
		for _, p := range f.Body.Params {
			if r := p.Attrs.Str("role"); r != "" && !slices.Contains(roles, r) {
				e := diag.Errorf("model", "parameter %%%s of @%s has role %q", p.Name, f.Name, r).WithHint("roles are %s", strings.Join(roles, ", "))
				e.File = file
				return e
			}
		}
	}
	return nil
}

// initFits reports what @init makes for @step and @step does not take: a state of another type would be half filled, or written over its neighbours.
func initFits(m *ir.Module, file string) error {
	init, step := m.Func("init"), m.Func("step")
	if init == nil || step == nil {
		return nil
	}
	for i, name := range init.Results {
		p, v := step.Param(name), init.Body.Results[i]
		var e *diag.Error
		switch {
		case p == nil || !p.IsState():
			e = diag.Errorf("model", "@init makes %q, which is no state of @step", name).WithHint("leave it out of the results of @init, or give @step a parameter of that name and of role param, opt or buffer")
		case !p.Type.Equal(v.Type):
			e = diag.Errorf("model", "@init makes %q as %s, and @step takes it as %s", name, v.Type, p.Type).WithHint("give both one type")
		default:
			continue
		}
		e.File = file
		if v.Op != nil {
			e.Layer = v.Op.Loc.Layer
		}
		return e
	}
	for _, q := range init.Body.Params {
		if p := step.Param(q.Name); p != nil && !p.Type.Equal(q.Type) {
			e := diag.Errorf("model", "@init takes %%%s as %s, and @step as %s", q.Name, q.Type, p.Type).WithHint("give both one type")
			e.File = file
			return e
		}
	}
	return nil
}

// trains reports whether @step gives a loss and a new value to a parameter.
func trains(m *ir.Module) bool {
	step := m.Func("step")
	if step == nil || step.Result("loss") == nil {
		return false
	}
	return slices.ContainsFunc(step.Results, func(name string) bool {
		p := step.Param(name)
		return p != nil && p.Role() == ir.RoleParam
	})
}

const textForm = "a module in text form"

// supported names what Load takes.
const supported = "supported so far: .ir files (docs/ir.md) and builtin:NAME[,key=value…]"

// sniff tells what a file is by its content, or else by its name.
func sniff(path string, data []byte) string {
	head := bytes.TrimLeft(data[:min(len(data), 1<<16)], " \t\r\n")
	for bytes.HasPrefix(head, []byte("//")) || bytes.HasPrefix(head, []byte(";")) {
		_, rest, _ := bytes.Cut(head, []byte("\n"))
		head = bytes.TrimLeft(rest, " \t\r\n")
	}
	starts := func(s string) bool { return bytes.HasPrefix(head, []byte(s)) }
	has := func(s string) bool { return bytes.Contains(head, []byte(s)) }
	switch ext := filepath.Ext(path); {
	case starts(`module "`), starts("func @"):
		return textForm
	case starts("\x7fELF"):
		return "a compiled program"
	case starts("module"), starts("func.func"), starts("#loc"), starts(`"builtin.module"`), has("stablehlo."):
		return "an MLIR module (StableHLO)"
	case starts("{") && has("reprise.graph/"):
		return "a graph for the planner"
	case starts("{") && (has("model_type") || has("architectures")):
		return "a Hugging Face configuration"
	case len(data) > 9 && data[8] == '{' && data[7] == 0:
		return "a safetensors file: weights without a model"
	case len(data) > 2 && data[0] == 0x08 && data[1] < 32 && !isText(head):
		return "an ONNX model"
	case ext == ".ir":
		return textForm
	case ext == ".mlir":
		return "an MLIR module (StableHLO)"
	case ext == ".onnx":
		return "an ONNX model"
	}
	return "of no form that is known here"
}

func isText(data []byte) bool {
	return !bytes.ContainsFunc(data, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' })
}

func unsupported(arg, what string) error {
	e := diag.Errorf("unsupported", "it is %s, which can't be compiled", what)
	e.File = arg
	switch what {
	case "a compiled program":
		return e.WithHint("run it directly, or with: reprise run %s", arg)
	case "a graph for the planner":
		return e.WithHint("plan it with: reprise plan %s", arg)
	}
	return e.WithHint("%s", supported)
}

// missing is the error for a file that is not there; a person may have meant a builtin.
func missing(arg string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return diag.Unreadable(arg, err)
	}
	e := diag.Errorf("model", "no file of this name")
	e.File = arg
	name, _, _ := strings.Cut(arg, ",")
	for _, b := range nn.Builtins() {
		if b.Name == name {
			return e.WithHint("did you mean builtin:%s?", arg)
		}
	}
	return e.WithHint("%s", supported)
}
