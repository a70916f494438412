! gpunn ${version} for Fortran, written by `python3 -m generator.fortran` from the declarations of gpunn.h: do not edit.
!
!     cc -O3 -march=native -c examples/embedding/gpunn.c -I. -o library.o
!     gfortran -O2 gpunn.f90 program.f90 library.o -lm -lpthread
!
! Names, arguments and meanings are those of gpunn.h. The comment of each function is the first sentence there.
!
! Arrays. Fortran's first dimension is gpunn's last: x(features, batch) is C's x[batch][features], and the tensor's shape is
! gpunn_shape([GPUNN_BATCH, features]). Axes count as in C, from 0. gpunn_write, gpunn_read, gpunn_read_grad and gpunn_bind take
! real32, real64, int32 and int64 arrays of rank 1 to 4, or an address and its bytes. gpunn_write and gpunn_read convert to and from
! the dtype of the tensor. gpunn_bind takes a contiguous array with the target attribute and of the tensor's dtype.
!
! Named arguments. The last argument of many functions is a struct, which may be left out. Its constructor names the fields:
!     gpunn_linear(x, 'fc1', gpunn_linear_args(out_features=8)). Fields that are not named have C's defaults.
!
! Errors are as in C. call gpunn_check(status, dev) stops a program that cannot go on, with the sentence of the first failure.
!
! Handles are type(c_ptr), callbacks type(c_funptr): c_funloc of a procedure with bind(c) and the abstract interface STRUCT_FIELD.
! A list of handles needs no count: gpunn_forward([output]). A text, struct or result that C allows to be NULL may be left out.
!
! Texts are character(len=*) in calls, without trailing blanks, and allocatable characters in results. In a struct they are C's:
! gpunn_to_c('losses.csv') makes one, which is never freed; gpunn_from_c reads one.
!
! c_NAME is C's own function where NAME takes or gives Fortran's texts, logicals, lists or optional arguments.
!
! Fortran ignores case. A constant that differs from another name only in case has the ending _VALUE:
${renamed}
module gpunn
    use, intrinsic :: iso_c_binding
    implicit none
    public

${constants}

${types}

    ! every axis
    type(gpunn_axes), parameter :: GPUNN_ALL = gpunn_axes(axis=[GPUNN_END, spread(0, 1, GPUNN_MAX_RANK)])

    interface gpunn_shape ! sizes in C's order
        module procedure shape_of_int32, shape_of_int64
    end interface
    interface gpunn_axes ! axes in C's order, from 0
        module procedure axes_of
    end interface
    private :: shape_of_int32, shape_of_int64, axes_of

    ! Callbacks
    abstract interface
${callbacks}
    end interface

    ! Functions of the library
    interface
        function c_strlen(text) bind(c, name='strlen')
            import
            type(c_ptr), value :: text
            integer(c_size_t) :: c_strlen
        end function
${interfaces}
    end interface

${generics}
contains
    pure function shape_of_int64(sizes) result(shape)
        integer(c_int64_t), intent(in) :: sizes(:)
        type(gpunn_shape) :: shape
        shape%dim(:size(sizes)) = sizes
    end function

    pure function shape_of_int32(sizes) result(shape)
        integer(c_int), intent(in) :: sizes(:)
        type(gpunn_shape) :: shape
        shape%dim(:size(sizes)) = int(sizes, c_int64_t)
    end function

    pure function axes_of(listed) result(axes)
        integer(c_int), intent(in) :: listed(:)
        type(gpunn_axes) :: axes
        axes%axis = GPUNN_END
        axes%axis(:size(listed)) = listed
    end function

    subroutine gpunn_check(status, dev)
        integer(c_int), intent(in) :: status
        type(c_ptr), intent(in) :: dev
        character(:), allocatable :: sentence
        sentence = gpunn_error(dev)
        if (status /= GPUNN_OK) error stop sentence
    end subroutine

    function gpunn_from_c(pointer) result(text)
        type(c_ptr), intent(in) :: pointer
        character(:), allocatable :: text
        character(kind=c_char), pointer :: characters(:)
        integer :: i
        text = ''
        if (.not. c_associated(pointer)) return
        call c_f_pointer(pointer, characters, [c_strlen(pointer)])
        text = repeat(' ', size(characters))
        do i = 1, size(characters)
            text(i:i) = characters(i)
        end do
    end function

    function gpunn_to_c(text) result(pointer)
        character(len=*), intent(in) :: text
        type(c_ptr) :: pointer
        character(kind=c_char), pointer :: characters(:)
        integer :: i
        allocate(characters(len_trim(text) + 1))
        do i = 1, len_trim(text)
            characters(i) = text(i:i)
        end do
        characters(size(characters)) = c_null_char
        pointer = c_loc(characters(1))
    end function

${procedures}
end module
