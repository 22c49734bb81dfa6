"""Loops of a disassembly written by hand."""

from fullscale.kernels.fused.machine_code import counts, loops

PERSISTENT = """
        /*0000*/                   S2R R0, SR_CTAID.X ;
        /*0010*/               @P0 EXIT ;
.L_x_5:
        /*0020*/                   FADD R1, R1, R2 ;
        /*0030*/              @!P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0040*/              @!P1 BRA `(.L_x_2) ;
.L_x_6:
        /*0050*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24 ;
        /*0060*/                   @UP2 UTMALDG.2D [UR20], [UR24] ;
        /*0070*/              @!P1 BRA `(.L_x_3) ;
.L_x_1:
        /*0080*/                   FMUL R1, R1, R2 ;
        /*0090*/                   FFMA R1, R1, R2, R3 ;
        /*00a0*/               @P1 EXIT ;
        /*00b0*/                   BRA `(.L_x_5) ;
.L_x_2:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR15+0x30000], R153 ;
        /*00d0*/              @!P1 BRA `(.L_x_2) ;
        /*00e0*/                   BRA `(.L_x_6) ;
.L_x_7:
        /*00f0*/                   BRA `(.L_x_7);
"""
"""A loop over tiles around a loop over depth; the wait of the latter stands behind both and branches back into it."""


def test_instructions_by_name():
    found = counts(PERSISTENT)
    assert (found["HGMMA"], found["UTMALDG"], found["BRA"], found["EXIT"], found["STL"]) == (1, 1, 7, 2, 0)


def test_a_main_loop_is_the_inner_one_and_the_wait_is_none():
    (found,) = loops(PERSISTENT, "UTMALDG")
    assert found["HGMMA"] == 1
    assert found["SYNCS"] == 1  # the wait is part of the loop it returns to
    assert not found["FADD"] + found["FMUL"] + found["FFMA"]


def test_arithmetic_in_the_main_loop_is_seen():
    changed = PERSISTENT.replace("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24", "FFMA R1, R1, R2, R3")
    (found,) = loops(changed, "UTMALDG")
    assert found["FFMA"] == 1


def test_other_loops_are_found_by_what_they_hold():
    assert [sum(loop.values()) for loop in loops(PERSISTENT, "SYNCS")] == [2]
    assert loops(PERSISTENT, "HMMA") == []
    assert [loop["FADD"] for loop in loops(PERSISTENT, "FADD")] == [1]


def test_code_without_a_loop():
    assert loops("        /*0000*/                   UTMALDG.2D [UR20], [UR24] ;\n", "UTMALDG") == []
