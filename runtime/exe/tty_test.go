package exe_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"reprise/runtime/internal/fixture"
)

// terminal opens a pseudo-terminal: what is written to tty is read from pty.
func terminal(t *testing.T) (pty, tty *os.File) {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { pty.Close() })
	var unlock, number int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &number} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, pty.Fd(), request, uintptr(unsafe.Pointer(arg)))
		require.Zero(t, errno)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { tty.Close() })
	return pty, tty
}

func TestTerminal(t *testing.T) {
	lm := buildProgram(t, fixture.LM(""))
	for _, c := range []struct {
		name       string
		args, env  []string
		has, hasnt []string
	}{
		{"progress", []string{"--steps", "3"}, nil, []string{"\r\033[Kstep 1  loss ", "step 3  loss ", " tokens/s  0 s left", "\r\033[K"}, nil},
		{"quiet", []string{"--steps", "3", "--quiet"}, nil, nil, []string{"step"}},
		{"json", []string{"--steps", "3", "--json"}, nil, nil, []string{"step"}},
		{"colour", []string{"--data", "none"}, nil, []string{"lm: \033[1;31merror:\033[0m cannot open none"}, nil},
		{"no colour", []string{"--data", "none"}, []string{"NO_COLOR=1"}, []string{"lm: error: cannot open none"}, []string{"\033"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pty, tty := terminal(t)
			cmd := exec.Command(lm.path, c.args...)
			cmd.Dir = t.TempDir()
			cmd.Env = append([]string{"PATH=/bin"}, c.env...)
			cmd.Stderr = tty
			_ = cmd.Run() // errors are among the cases
			_, err := tty.WriteString("END")
			require.NoError(t, err)
			said := make([]byte, 0, 4096)
			for len(said) < 3 || string(said[len(said)-3:]) != "END" {
				n, err := pty.Read(said[len(said):cap(said)])
				require.NoError(t, err)
				said = said[:len(said)+n]
			}
			for _, want := range c.has {
				require.Contains(t, string(said), want)
			}
			for _, bad := range c.hasnt {
				require.NotContains(t, string(said), bad)
			}
		})
	}
}
